"""The optimizers of the paper's tables by name, and a user's own.

A name is one of `NAMES`, an entry point of the group ``sgdf.optimizers`` in an installed
package, or the path of a class or function, as in ``mypkg.MyOptimizer``.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Unpack, get_args, get_origin

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum
from sgdf.lab.optimizers.eadam import EAdam
from sgdf.lab.optimizers.sophia import SophiaG
from sgdf.optim.settings import require
from sgdf.support import errors

GROUP = "sgdf.optimizers"

Betas = tuple[float, float]


@dataclass(frozen=True)
class Entry:
    """An optimizer by name."""

    name: str
    build: Callable[..., Optimizer]
    about: str
    capturable: bool = True  # a CUDA graph can hold step(), with lr a tensor on the device
    on_cuda: Mapping[str, Any] = field(default_factory=dict)  # what step() needs for that
    is_open: bool = False  # a user's `**settings`: any name may be meant

    @property
    def settings(self) -> tuple[str, ...]:
        """The names a user may set."""
        return setting_names(self.build)

    def check(self, settings: Iterable[str]) -> None:
        """Refuse a name that cannot be set."""
        for setting in settings:
            if setting not in self.settings and not self.is_open:
                raise errors.unknown(f"setting of {self.name}", setting, self.settings)


def setting_names(build: Callable[..., Any]) -> tuple[str, ...]:
    """Its parameters but the first, with those that ``**settings: Unpack[Names]`` stands for."""
    names: list[str] = []
    for parameter in list(inspect.signature(build).parameters.values())[1:]:
        if get_origin(parameter.annotation) is Unpack:
            names += get_args(parameter.annotation)[0].__annotations__
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            names.append(parameter.name)
    return tuple(names)


def sgd_ema(
    params: ParamsT, lr: float | Tensor = 0.1, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1 - beta, weight_decay)


def sgd_cm(
    params: ParamsT, lr: float | Tensor = 0.1, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1.0, weight_decay)


# From pytorch_optimizer, imported where it is used. Its classes take any keyword in silence and
# decouple weight decay by default: each function names what can be set, and fixes the rest as
# the paper's experiments have it. For its other options: --optimizer pytorch_optimizer.AdaBelief.


def msvag(
    params: ParamsT,
    lr: float = 0.1,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """The paper's tables give it two betas and an eps: M-SVAG uses the first beta alone.

    The class has no weight decay.
    """
    from pytorch_optimizer import MSVAG

    require(weight_decay >= 0.0, "weight_decay value", weight_decay)
    optimizer = MSVAG(params, lr, betas[0])
    for group in optimizer.param_groups:
        group.setdefault("weight_decay", weight_decay)
    optimizer.register_step_pre_hook(add_l2_penalty)
    return optimizer


def add_l2_penalty(optimizer: Optimizer, *_: Any) -> None:
    """Adds to the gradients in place, as pytorch_optimizer's own L2 penalties do."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and group["weight_decay"] != 0:
                p.grad.add_(p.detach(), alpha=group["weight_decay"])


def adabound(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    final_lr: float = 0.1,
    gamma: float = 1e-3,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """L2 weight decay, as in the authors' class; `final_lr` follows the schedule of lr."""
    from pytorch_optimizer import AdaBound

    return AdaBound(
        params, lr, final_lr, betas, gamma, weight_decay, weight_decouple=False, eps=eps
    )


def adabelief(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """For CIFAR: L2 weight decay, no rectification, and eps 1e-8 where the class has 1e-16."""
    from pytorch_optimizer import AdaBelief

    return AdaBelief(params, lr, betas, weight_decay, weight_decouple=False, eps=eps)


def yogi(
    params: ParamsT,
    lr: float = 1e-2,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-3,
    initial_accumulator: float = 1e-6,
    weight_decay: float = 0.0,
) -> Optimizer:
    """L2 weight decay; the rest are the class's defaults, which are the publication's."""
    from pytorch_optimizer import Yogi

    return Yogi(
        params, lr, betas, initial_accumulator, weight_decay, weight_decouple=False, eps=eps
    )


def padam(
    params: ParamsT,
    lr: float = 0.1,
    betas: Betas = (0.9, 0.999),
    partial: float = 0.125,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """L2 weight decay; the power 1/8 of the publication, where the class has 1/4."""
    from pytorch_optimizer import PAdam

    return PAdam(params, lr, betas, partial, weight_decay, weight_decouple=False, eps=eps)


def fromage(params: ParamsT, lr: float | Tensor = 1e-2) -> Optimizer:
    """No weight decay: the publication has none."""
    from pytorch_optimizer import Fromage

    return Fromage(params, lr)


def lion(
    params: ParamsT,
    lr: float | Tensor = 1e-4,
    betas: Betas = (0.9, 0.99),
    weight_decay: float = 0.0,
) -> Optimizer:
    """Decoupled weight decay, as published."""
    from pytorch_optimizer import Lion

    return Lion(params, lr, betas, weight_decay, weight_decouple=True)


CAPTURABLE = {"capturable": True}
FUSED = {"fused": True}

ENTRIES = (
    Entry("sgdf", SGDF, "SGD along the Wiener-filtered gradient", on_cuda=CAPTURABLE),
    Entry("filter-adam", FilterAdam, "Adam with the filtered gradient", on_cuda=CAPTURABLE),
    Entry("filter-adamw", FilterAdamW, "AdamW with the filtered gradient", on_cuda=CAPTURABLE),
    Entry(
        "sgd",
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),  # what the paper's tables call SGD
        "SGD with momentum 0.9",
        on_cuda=FUSED,
    ),
    Entry("sgd-ema", sgd_ema, "SGD along a moving average of the gradient"),
    Entry("sgd-cm", sgd_cm, "SGD with classical momentum, as the paper defines it"),
    Entry("adam", torch.optim.Adam, "Adam, L2 weight decay", on_cuda=FUSED | CAPTURABLE),
    Entry("adamw", torch.optim.AdamW, "Adam, decoupled weight decay", on_cuda=FUSED | CAPTURABLE),
    Entry(
        "radam",
        torch.optim.RAdam,
        "rectified Adam, L2 weight decay",
        on_cuda=CAPTURABLE | {"foreach": True},
    ),
    Entry(
        "rmsprop",
        torch.optim.RMSprop,
        "gradient over its root mean square",
        on_cuda=CAPTURABLE | {"foreach": True},
    ),
    Entry("msvag", msvag, "momentum damped by the gradient's variance", capturable=False),
    Entry("adabound", adabound, "Adam with bounds that close on SGD", capturable=False),
    Entry("adabelief", adabelief, "Adam by the variance about the trend", capturable=False),
    Entry(
        "yogi",
        yogi,
        "Adam with an additive second moment (with Adam's bias correction, which the paper lacks)",
        capturable=False,
    ),
    Entry(
        "padam",
        padam,
        "partially adaptive Adam (without the paper's running maximum, AMSGrad)",
        capturable=False,
    ),
    Entry("fromage", fromage, "steps in proportion to the weights"),
    Entry("lion", lion, "the sign of an interpolated momentum"),
    Entry("eadam", EAdam, "Adam with eps summed in the second moment", on_cuda=CAPTURABLE),
    Entry("sophia-g", SophiaG, "momentum over a diagonal of the curvature, clipped"),
)
NAMES = tuple(entry.name for entry in ENTRIES)


def find(name: str) -> Entry:
    """The entry of a name; `errors.UserError` if there is none or it cannot be loaded."""
    plugins = {plugin.name: plugin for plugin in entry_points(group=GROUP)}
    if name in NAMES:
        if name in plugins:
            package = plugins[name].dist
            warnings.warn(
                f"the optimizer {name!r} of {package.name if package else 'a package'} has a name "
                "that sgdf uses for its own, which is taken: give it by its path instead",
                stacklevel=2,
            )
        return ENTRIES[NAMES.index(name)]
    if name in plugins:
        return users(name, load_plugin(plugins[name]))
    if "." in name or ":" in name:
        return users(name, load_path(name))
    raise errors.unknown("optimizer", name, [*NAMES, *plugins])


def build(
    name: str, params: ParamsT, settings: dict[str, Any], *, device: torch.device
) -> Optimizer:
    """The named optimizer, ready for CUDA graphs where its entry says that it can be.

    The learning rate may be a 1-element tensor. An optimizer that cannot be captured gets it as
    a number: change ``group["lr"]`` then, not the tensor.
    """
    entry = find(name)
    entry.check(settings)
    chosen: dict[str, Any] = dict(entry.on_cuda) if device.type == "cuda" else {}
    for setting, value in settings.items():
        chosen[setting] = tuple(value) if isinstance(value, list) else value
    if isinstance(chosen.get("lr"), Tensor) and not entry.capturable:
        chosen["lr"] = chosen["lr"].item()
    try:
        optimizer = entry.build(params, **chosen)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # whatever a class raises for a value that it cannot mean
        given = ", ".join(f"{setting}={value}" for setting, value in settings.items())
        raise errors.UserError(
            f"{name} cannot be made with {given or 'its defaults'}: {error}"
        ) from error
    if not isinstance(optimizer, Optimizer):
        raise errors.UserError(f"{name} made a {type(optimizer).__name__}, not a torch optimizer")
    return optimizer


def users(name: str, target: Any) -> Entry:
    """An entry for a class or function that the lab does not know."""
    if not callable(target):
        raise errors.UserError(
            f"{name} is neither an optimizer class nor a function that makes an optimizer: it is "
            f"of type {type(target).__name__}"
        )
    capturable = "capturable" in setting_names(target)
    return Entry(
        name,
        target,
        (inspect.getdoc(target) or "").partition("\n")[0],
        capturable,
        CAPTURABLE if capturable else {},
        is_open=any(
            p.kind is p.VAR_KEYWORD and get_origin(p.annotation) is not Unpack
            for p in inspect.signature(target).parameters.values()
        ),
    )


def load_plugin(plugin: EntryPoint) -> Any:
    try:
        return plugin.load()
    except Exception as error:  # a package that breaks on import breaks in any way
        raise errors.UserError(
            f"the optimizer {plugin.name!r} cannot be loaded from {plugin.value} ({error}): "
            "mend or remove the package that announces it"
        ) from error


def load_path(path: str) -> Any:
    """What ``package.module.Name`` or ``package.module:Name`` stands for."""
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # as above
        raise errors.UserError(
            f"the optimizer {path!r} cannot be loaded ({error}): install its package, or put the "
            "folder that holds it on PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        known = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise errors.unknown(f"optimizer in {module_name}", attribute, known)
    return getattr(module, attribute)

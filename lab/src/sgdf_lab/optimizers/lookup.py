"""Find and build an optimizer by name.

A name is one of `OPTIMIZERS`, an entry point of the group ``sgdf.optimizers`` in an installed
package, or the path of a class or function, such as ``mypkg.MyOptimizer``. With ``wiener-`` before
it, the optimizer's gradients are filtered.
"""

import importlib
import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Unpack, get_origin

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sgdf_lab import plugins
from sgdf_lab.optimizers import annotations
from sgdf_lab.optimizers.filtered import NAME, FilteredRow, filtered
from sgdf_lab.optimizers.registry import CAPTURABLE, OPTIMIZERS, style
from sgdf_lab.optimizers.row import OptimizerRow
from sgdf_lab.support.errors import UserError, reason_of, unknown

GROUP = "sgdf.optimizers"


def find(name: str) -> OptimizerRow:
    """The row of a name; `UserError` if there is none or it cannot be loaded."""
    announced = plugins.announced(GROUP)
    if name in OPTIMIZERS:
        if name in announced:
            package = announced[name].dist
            warnings.warn(
                f"the optimizer {name!r} of {package.name if package else 'a package'} has the "
                "name of one of sgdf's own, which is used: give it by its path instead",
                stacklevel=2,
            )
        return OPTIMIZERS[name]
    if name in announced:
        return row_for(name, plugins.load("optimizer", announced[name]))
    if name.startswith(NAME):
        row = find(name.removeprefix(NAME))
        if isinstance(row, FilteredRow):
            raise UserError(f"{name}: the filter can be in front only once")
        return filtered(row)
    if "." in name or ":" in name:
        return row_for(name, load_path(name))
    raise unknown("optimizer", name, [*OPTIMIZERS, *announced])


def build_optimizer(
    name: str,
    params: ParamsT,
    settings: Mapping[str, Any],
    *,
    device: torch.device,
    model: nn.Module | None = None,
) -> Optimizer:
    """The named optimizer, ready for CUDA graphs where its row says that it can be.

    Muon asks the model, if it is given, which of the parameters are embeddings and the head.

    The learning rate may be a 1-element tensor. An optimizer that cannot be captured gets it as
    a number: change ``group["lr"]`` then, not the tensor.
    """
    row = find(name)
    arguments: dict[str, Any] = dict(row.on_cuda) if device.type == "cuda" else {}
    arguments |= row.arguments(settings)
    if isinstance(arguments.get("lr"), Tensor) and not row.capturable:
        arguments["lr"] = arguments["lr"].item()
    try:
        optimizer = row.build(params, arguments, model)
    except ModuleNotFoundError:
        raise
    except (Exception, SystemExit) as error:  # a class may raise anything for an invalid value
        given = ", ".join(f"{setting}={value}" for setting, value in settings.items())
        raise UserError(
            f"{name} cannot be built with {given or 'its defaults'}: {reason_of(error)}"
        ) from error
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"{name} built a {type(optimizer).__name__}, not a torch optimizer")
    return optimizer


# --- a user's own ---------------------------------------------------------------------------------


def row_for(name: str, target: Any) -> OptimizerRow:
    """A row for a class or function that the lab does not know."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # cannot be called, or is built in
        raise UserError(
            f"{name} is neither an optimizer class nor a function that builds an optimizer: it is "
            f"of type {type(target).__name__}"
        ) from None
    capturable = "capturable" in annotations.of(target)
    colour, dash = style(name)
    return OptimizerRow(
        name=name,
        builder=target,
        about=(inspect.getdoc(target) or "").partition("\n")[0],
        source=getattr(target, "__module__", "").partition(".")[0],
        colour=colour,
        dash=dash,
        capturable=capturable,
        on_cuda=CAPTURABLE if capturable else {},
        needs_hessian=hasattr(target, "update_hessian"),
        typed=False,
        any_setting=any(
            p.kind is p.VAR_KEYWORD and get_origin(p.annotation) is not Unpack
            for p in signature.parameters.values()
        ),
    )


def load_path(path: str) -> Any:
    """The object of ``package.module.Name`` or ``package.module:Name``."""
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module breaks on import in any way
        raise UserError(
            f"the optimizer {path!r} cannot be loaded ({reason_of(error)}): install its package, "
            "or put the folder that holds it on PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        known = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise unknown(f"optimizer in {module_name}", attribute, known)
    return getattr(module, attribute)

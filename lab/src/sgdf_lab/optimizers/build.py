"""Build the optimizer of a row: its arguments, groups of parameters, the filter in front of it."""

import functools
import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sgdf import WienerFilter, param_groups
from sgdf_lab import plugins
from sgdf_lab.registry.optimizers import (
    FILTER_KINDS,
    GROUP,
    OPTIMIZERS,
    PREFIX,
    FilteredRow,
    OptimizerRow,
    find,
)
from sgdf_lab.support.errors import UserError, reason_of


class HessianOptimizer(Protocol):
    """An optimizer that needs a second backward pass now and then, as SophiaG describes."""

    hessian_every: int  # steps between two calls of update_hessian; 0: never

    def update_hessian(self, batch_size: int) -> None: ...


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
    warn_of_a_hidden_one(name)
    rate = settings.get("lr")
    others = {n: v for n, v in settings.items() if not isinstance(v, Tensor)}
    arguments = dict(row.on_cuda) if device.type == "cuda" else {}
    arguments |= as_arguments(row.checked(others), dtypes=row.typed)
    if isinstance(rate, Tensor):
        arguments["lr"] = rate if row.capturable else rate.item()
    try:
        optimizer = build(row, params, arguments, model)
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


def warn_of_a_hidden_one(name: str) -> None:
    """An installed package may announce an optimizer with the name of one of the lab's own."""
    if name in OPTIMIZERS and (hidden := plugins.announced(GROUP).get(name)):
        package = hidden.dist.name if hidden.dist else "a package"
        warnings.warn(
            f"the optimizer {name!r} of {package} has the name of one of sgdf's own, which is "
            "used: give it by its path instead",
            stacklevel=3,
        )


def as_arguments(settings: Mapping[str, Any], *, dtypes: bool) -> dict[str, Any]:
    """Recorded settings as a builder takes them: a list as a tuple, the name of a dtype as one."""
    found = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    for name, value in found.items():
        is_filters = name.startswith(PREFIX)
        if (dtypes or is_filters) and name.endswith("state_dtype") and isinstance(value, str):
            found[name] = getattr(torch, value)
    return found


def build(
    row: OptimizerRow, params: ParamsT, arguments: Mapping[str, Any], model: nn.Module | None
) -> Any:
    """Call the row's builder, or with the filter in front that of the inner row."""
    if isinstance(row, FilteredRow):
        inner = {n: v for n, v in arguments.items() if n not in FILTER_KINDS}
        optimizer = build(row.inner, params, inner, model)
        if isinstance(optimizer, Optimizer):
            own = {n.removeprefix(PREFIX): v for n, v in arguments.items() if n in FILTER_KINDS}
            keep_together(optimizer, WienerFilter(optimizer, **own))
        return optimizer
    given = {**row.settings, **row.fixed, **arguments}
    decays_norms = not row.typed or given.pop("decay_norms", True)
    grouped = given.pop("param_groups", False)
    for bounds, is_wrong in ((row.at_least, float.__lt__), (row.above, float.__le__)):
        for name, bound in bounds.items():
            if name in given and is_wrong(float(given[name]), float(bound)):
                raise ValueError(f"Invalid {name} value: {given[name]}")
    if row.groups is not None:
        groups = plugins.load_own(row.groups) if isinstance(row.groups, str) else row.groups
        params = groups(params, model)
    named = {row.renamed.get(name, name): value for name, value in given.items()}
    if grouped or not decays_norms:
        params = without_decay(params, model if grouped else None)
    return row.load()(params, **named)


def default_of(row: OptimizerRow, name: str) -> Any:
    """The value of a setting that is not given; None if the builder has no such parameter."""
    if name in row.fixed:
        return row.fixed[name]
    parameter = inspect.signature(row.load()).parameters.get(name)
    return None if parameter is None else parameter.default


# --- groups of parameters -------------------------------------------------------------------------

Group = dict[str, Any]


def as_groups(params: ParamsT) -> list[Group]:
    """Groups as they are; plain or named parameters as one group."""
    entries: list[Any] = list(params)
    groups = entries if entries and isinstance(entries[0], dict) else [{"params": entries}]

    def as_list(params: Any) -> list[Any]:
        return [params] if isinstance(params, Tensor) else list(params)

    return [{**group, "params": as_list(group["params"])} for group in groups]


def split_by(name: str, params: ParamsT) -> list[Group]:
    """Groups that each hold hidden matrices or other parameters, as their entry `name` says.

    Where a group does not say it, its parameters of two dimensions are hidden matrices.
    """
    found: list[Group] = []
    for group in as_groups(params):
        for kind in (True, False):
            given = group["params"]
            chosen = [p for p in given if bool(group.get(name, tensor_of(p).ndim == 2)) == kind]
            if chosen:
                found.append({**group, "params": chosen, name: kind})
    return found


def without_decay(params: ParamsT, model: nn.Module | None) -> list[Group]:
    """No weight decay on what `sgdf.param_groups` leaves out of it: norms, biases, embeddings.

    Without a model, for the setting ``decay_norms=false``: on parameters of less than two
    dimensions.
    """
    groups = param_groups(model, weight_decay=1.0) if model is not None else []
    exempt = {id(p) for group in groups if not group["weight_decay"] for p in group["params"]}

    def is_decayed(p: Any) -> bool:
        return tensor_of(p).ndim >= 2 and id(tensor_of(p)) not in exempt

    split: list[Group] = []
    for group in as_groups(params):
        decayed = [p for p in group["params"] if is_decayed(p)]
        others = [p for p in group["params"] if not is_decayed(p)]
        split.append({**group, "params": decayed})
        split.append({**group, "params": others, "weight_decay": 0.0})
    return [group for group in split if group["params"]]


def tensor_of(param: Any) -> Tensor:
    """A parameter, or that of a pair of name and parameter."""
    found: Tensor = param[1] if isinstance(param, tuple) else param
    return found


# --- state ----------------------------------------------------------------------------------------


def set_mode(optimizers: Iterable[Optimizer], *, training: bool) -> None:
    """Put the weights to train with, or the averaged ones, into the model.

    Only schedule-free optimizers, which have `train` and `eval`, have two sets of weights. A
    checkpoint holds the averaged weights and the mode: the optimizer can restore the weights to
    train with from them.
    """
    for optimizer in optimizers:
        change = getattr(optimizer, "train" if training else "eval", None)
        if callable(change):
            change()


def keep_together(optimizer: Optimizer, wiener: WienerFilter) -> None:
    """Save and load the filter's state in the optimizer's state dict.

    By the two methods, not by torch's hooks: some classes read the state dict that was given to
    them again after torch has loaded it.
    """
    save, load = optimizer.state_dict, optimizer.load_state_dict

    @functools.wraps(save)
    def with_filter() -> dict[str, Any]:
        saved = save()
        state = {i: dict(moments) for i, moments in saved["state"].items()}
        for i, moments in wiener.state_dict()["state"].items():
            state.setdefault(i, {}).update({PREFIX + key: v for key, v in moments.items()})
        return {**saved, "state": state}

    @functools.wraps(load)
    def load_state_dict(state_dict: dict[str, Any]) -> None:
        own: dict[int, Any] = {}
        of_filter: dict[int, Any] = {}
        for i, moments in state_dict["state"].items():
            for key, value in moments.items():
                place = of_filter if key.startswith(PREFIX) else own
                place.setdefault(i, {})[key.removeprefix(PREFIX)] = value
        load({**state_dict, "state": own})
        wiener.load_state_dict({"settings": {}, "state": of_filter})

    optimizer.state_dict = with_filter  # type: ignore[method-assign]
    optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]

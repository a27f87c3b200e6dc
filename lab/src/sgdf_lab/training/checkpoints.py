"""Checkpoints of a trainer: their layout, their checks, and an optimizer's state restored.

Everything is checked before anything is restored. The restored state may come from another device
or another number of processes.
"""

import io
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sgdf.optim import is_8_bit, read_moment
from sgdf_lab import optimizers
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numbers import is_number
from sgdf_lab.training.distributed import scattered

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

# Settings that the live optimizer keeps: how it runs on this device, not what it computes.
LIVE_SETTINGS = ("lr", "foreach", "fused", "capturable", "differentiable")


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be used."""


# --- the layout -----------------------------------------------------------------------------------


def layout(value: Any, path: str = "") -> dict[str, str]:
    """The kind of every entry by its path: shape and type of tensors, number of entries, type."""
    if isinstance(value, Tensor):
        return {path: f"{value.dtype} {list(value.shape)}"}
    if not isinstance(value, Mapping | list | tuple):
        return {path: type(value).__name__}
    kinds = {path: f"{len(value)} entries"}
    entries = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, entry in entries:
        kinds |= layout(entry, f"{path}[{key!r}]" if path else str(key))
    return kinds


def check_layout(state: Mapping[str, Any], expected: Any) -> None:
    """Compare with the layout that was recorded when the state was written."""
    actual = layout(state)
    if actual == expected:
        return
    if not isinstance(expected, dict):
        raise DamagedCheckpoint("it has no layout")
    for path, kind in expected.items():
        if path and actual.get(path) != kind:
            raise DamagedCheckpoint(f"{path} is {actual.get(path, 'missing')}, not {kind}")
    raise DamagedCheckpoint("it has entries that were not written")


# --- against the live model and optimizers --------------------------------------------------------


def check_state(
    state: Mapping[str, Any], model: nn.Module, live: Mapping[str, Optimizer], config: "Config"
) -> None:
    """Raise `DamagedCheckpoint` unless the state fits the model and the optimizers of a run."""
    epoch = state.get("epoch")
    if type(epoch) is not int or not 0 <= epoch <= config.epochs:
        raise DamagedCheckpoint(f"it is not of an epoch from 0 to {config.epochs}")
    check_model(state.get("model"), model)
    for name, optimizer in live.items():
        check_optimizer(state.get(name), optimizer, name)
        if config.optimizer in optimizers.OPTIMIZERS:  # none of these changes its own settings
            check_settings(state[name], optimizer, optimizers.find(config.optimizer).setting_names)
            check_steps(state[name])


def check_model(saved: Any, model: nn.Module) -> None:
    """Raise `DamagedCheckpoint` unless names and shapes are those of the model."""
    live = model.state_dict()
    if not isinstance(saved, Mapping) or saved.keys() != live.keys():
        raise DamagedCheckpoint("it does not have the weights of this model")
    for name, value in live.items():
        if isinstance(value, Tensor) and getattr(saved[name], "shape", None) != value.shape:
            raise DamagedCheckpoint(f"{name} does not have the shape {list(value.shape)}")


def check_optimizer(saved: Any, optimizer: Optimizer, name: str) -> None:
    """Raise `DamagedCheckpoint` unless groups and state belong to as many parameters."""
    if not isinstance(saved, Mapping):
        raise DamagedCheckpoint(f"it has no {name}")
    groups, state = saved.get("param_groups"), saved.get("state")
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if not isinstance(groups, list) or [_size(group) for group in groups] != sizes:
        raise DamagedCheckpoint(f"the groups of {name} are not those of this run")
    if not isinstance(state, Mapping):
        raise DamagedCheckpoint(f"{name} has no state")
    for index, moments in state.items():
        is_index = type(index) is int and 0 <= index < sum(sizes)
        if not is_index or not isinstance(moments, Mapping):
            raise DamagedCheckpoint(f"{name} has state of something that is not a parameter")


def check_settings(saved: Mapping[str, Any], optimizer: Optimizer, names: Collection[str]) -> None:
    """Raise `DamagedCheckpoint` unless settings of these names are equal, but the live ones.

    Other entries of a group may change during training, as Prodigy's estimate of the rate.
    """
    checked = {*names} - {*LIVE_SETTINGS}
    for old, live in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        for name in sorted(old.keys() & live.keys() & checked):
            ours, theirs = live[name], old[name]
            if isinstance(theirs, list):
                theirs = tuple(theirs)
            if isinstance(theirs, Tensor) or ours != theirs:
                raise DamagedCheckpoint(f"{name} of its optimizer is not {ours}")


def check_steps(saved: Mapping[str, Any]) -> None:
    """Raise `DamagedCheckpoint` unless the steps of parameters and groups can be counts."""
    for entry in (*saved["state"].values(), *saved["param_groups"]):
        step = entry.get("step", 0)
        if isinstance(step, Tensor) and step.numel() == 1:
            step = step.item()
        if not is_number(step) or step < 0 or step != int(step):
            raise DamagedCheckpoint("a step of its optimizer is not a count")


def _size(group: Any) -> int | None:
    """The number of parameters in a saved group."""
    params = group.get("params") if isinstance(group, Mapping) else None
    return len(params) if isinstance(params, list) else None


# --- restoring ------------------------------------------------------------------------------------


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load a state dict, but keep the live settings; every group keeps the rate that it reads."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    rates = [group.get("lr") for group in optimizer.param_groups]
    saved = from_portable(saved)
    # torch casts what it loads, and cannot load arrays: they are set afterwards.
    arrays = {
        i: {key: value for key, value in moments.items() if isinstance(value, np.ndarray)}
        for i, moments in saved["state"].items()
    }
    state = {
        i: restored_moments({k: v for k, v in moments.items() if k not in arrays[i]}, params[i])
        for i, moments in saved["state"].items()
    }
    groups = [
        {**old, **{name: live[name] for name in LIVE_SETTINGS if name in live}}
        for old, live in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    try:
        optimizer.load_state_dict({**saved, "state": state, "param_groups": groups})
    except Exception as error:  # a user's class may raise anything
        reason = str(error).partition("\n")[0]
        raise UserError(f"the optimizer's state cannot be restored: {reason}") from error
    for i, moments in arrays.items():
        if moments:
            optimizer.state[params[i]].update(moments)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate  # a tensor that captured steps read, or a number


# --- 8-bit moments in the layout and shards of this process ---------------------------------------


def restored_moments(saved: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """What an optimizer of this process loads for p.

    Blocks of 8-bit moments follow the order of their elements in memory. Weights are in another
    order if they are sharded, so moments that were saved in the other one are decoded; the
    optimizer encodes them again.
    """
    moments = dict(saved)
    for key, codes in saved.items():
        scale: Any = saved.get(f"{key}_scale")
        if not is_8_bit(codes, scale, p):
            continue
        if order(codes) != order(p):
            moments[key] = read_moment(saved, key)
            del moments[f"{key}_scale"]
        else:  # one row of scales for each row of the parameter
            moments[f"{key}_scale"] = scattered(scale, p, rows=True)
    return {key: scattered(value, p) for key, value in moments.items()}


def order(t: Tensor) -> list[int]:
    """The strides that decide which element is where: those of dimensions with several elements."""
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


# --- state without NumPy, which `torch.load` restores with `weights_only=True` --------------------

SCALAR, ARRAY = "numpy number", "numpy array"  # the marks
CONTAINERS: tuple[type, ...] = (dict, OrderedDict, list, tuple)


def to_portable(value: Any) -> Any:
    """The same value with NumPy's numbers and arrays as marked tensors."""
    if isinstance(value, np.ndarray | np.generic):
        try:
            tensor = torch.from_numpy(np.array(value))  # a copy
        except TypeError:  # of words, objects or dates
            return value
        return {SCALAR if isinstance(value, np.generic) else ARRAY: tensor}
    return _mapped(to_portable, value)


def from_portable(value: Any) -> Any:
    """The inverse of `to_portable`."""
    if is_marked(value, ARRAY):
        return value[ARRAY].cpu().numpy()
    if is_marked(value, SCALAR):
        return value[SCALAR].cpu().numpy()[()]
    return _mapped(from_portable, value)


def is_marked(value: Any, mark: str) -> bool:
    return type(value) is dict and list(value) == [mark] and isinstance(value[mark], Tensor)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the entries of a plain container; anything else stays as it is."""
    if type(value) in (dict, OrderedDict):
        return type(value)((key, function(entry)) for key, entry in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(function, value))
    return value


def unloadable(value: Any, path: str = "") -> str:
    """A phrase that names the first entry that cannot be restored; empty if there is none."""
    if isinstance(value, Tensor | bool | int | float | str | None) or _is_loadable(value):
        return ""
    for key, entry in _entries(value):
        inside = f"{path}[{key!r}]" if path else str(key)
        if phrase := unloadable(entry, inside):
            return phrase
    kind = type(value).__name__
    return f"{path} is {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    if type(value) not in CONTAINERS:
        return ()
    return list(value.items() if isinstance(value, dict) else enumerate(value))


def _is_loadable(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # a class may raise anything when it is pickled
        return False
    return True

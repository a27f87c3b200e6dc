"""Check a state dict before it is loaded, while the optimizer is still as it was."""

import math
import numbers
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from sgdf.kernels.quantized import blocks_per_row
from sgdf.optim.settings import check_settings


def checked(
    state_dict: dict[str, Any],
    groups: list[dict[str, Any]],
    keys: tuple[str, ...],
    setting_names: Collection[str],
    own_settings: Collection[str],
) -> dict[str, Any]:
    """A copy of `state_dict` with valid settings, complete, and state that fits the parameters.

    Args:
        state_dict: as `load_state_dict` received it.
        groups: the optimizer's parameter groups. They provide the settings that are missing.
        keys: the entries of a parameter's state that the optimizer uses.
        setting_names: the settings of a group.
        own_settings: those that are always the optimizer's own, whatever `state_dict` says.
    """
    saved = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    if [len(group["params"]) for group in saved] != sizes:
        return state_dict  # torch's own error says what is wrong
    complete, state = [], dict(state_dict["state"])
    for group, loaded in zip(groups, saved, strict=True):
        own = {name: group[name] for name in setting_names if name in group}
        merged = {**own, **loaded, **{name: group[name] for name in own_settings}}
        check_settings(merged)
        complete.append(merged)
        for i, p in zip(loaded["params"], group["params"], strict=True):
            if state.get(i) is not None:
                # torch's SGD saves None for a buffer it does not have.
                state[i] = {
                    key: value
                    for key, value in state[i].items()
                    if value is not None or key not in keys
                }
                check_state(i, p, state[i], keys)
    return {**state_dict, "param_groups": complete, "state": state}


def check_state(index: Any, p: Tensor, state: dict[str, Any], keys: Collection[str]) -> None:
    """Validate the state of one parameter, whose index is for the error message."""
    for key in keys:
        if key not in state:
            continue
        if key == "step":
            check_step(index, state["step"])
        else:
            check_moment(index, p, key, state)


def check_step(index: Any, step: Any) -> None:
    """A step counter is one number, at least 0; older checkpoints have it as a Python number."""
    scalar = isinstance(step, numbers.Real) or (isinstance(step, Tensor) and step.numel() == 1)
    if scalar and isinstance(step, Tensor) and step.is_meta:
        return  # no value to check
    if not scalar or not 0 <= float(step) < math.inf:
        raise ValueError(f"loaded state dict: invalid step of parameter {index}: {step!r}")


def check_moment(index: Any, p: Tensor, key: str, state: dict[str, Any]) -> None:
    """A moment has its parameter's shape; in 8 bits, also a scale for every block of a row."""
    moment, scale = state[key], state.get(f"{key}_scale")
    _check_tensor(index, p, key, moment, tuple(p.shape))
    in_8_bits = moment.dtype in (torch.int8, torch.uint8)
    if scale is not None and in_8_bits:
        blocks = (p.shape[0], blocks_per_row(p)) if p.dim() else ()
        _check_tensor(index, p, f"{key}_scale", scale, blocks)
    elif scale is not None or not (moment.is_floating_point() or moment.is_complex()):
        beside = "without" if scale is None else "with"
        raise ValueError(
            f"loaded state dict: {key} of parameter {index} has dtype {moment.dtype} {beside} "
            f"{key}_scale"
        )


def _check_tensor(index: Any, p: Tensor, key: str, value: Any, shape: tuple[int, ...]) -> None:
    name = f"loaded state dict: {key} of parameter {index}"
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is not a tensor but {value!r}")
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
    if value.is_meta and not p.is_meta:
        raise ValueError(f"{name} is on the meta device, without values")

"""Parameters in groups with settings of their own."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

Group = dict[str, Any]


def as_groups(params: ParamsT) -> list[Group]:
    """Groups as they are; plain or named parameters as one group."""
    entries: list[Any] = list(params)
    if entries and isinstance(entries[0], dict):
        return [{**group, "params": as_list(group["params"])} for group in entries]
    return [{"params": entries}]


def as_list(params: Any) -> list[Any]:
    return [params] if isinstance(params, Tensor) else list(params)


def without_decay(params: ParamsT) -> list[Group]:
    """No weight decay on norms and biases, that is on parameters of less than two dimensions.

    For the setting ``decay_norms=false``. Decay controls the scale of weight matrices; a bias or
    the scale of a norm has no such redundancy, and language models are usually trained without.
    """
    split: list[Group] = []
    for group in as_groups(params):
        decayed = [p for p in group["params"] if tensor_of(p).ndim >= 2]
        others = [p for p in group["params"] if tensor_of(p).ndim < 2]
        split.append({**group, "params": decayed})
        split.append({**group, "params": others, "weight_decay": 0.0})
    return [group for group in split if group["params"]]


def tensor_of(param: Any) -> Tensor:
    """A parameter, or that of a pair of name and parameter."""
    found: Tensor = param[1] if isinstance(param, tuple) else param
    return found

"""What a search varies: the space of an optimizer's row, as a sweep file changes it."""

from collections.abc import Mapping
from typing import Any

from sgdf_lab import optimizers
from sgdf_lab.registry.optimizers import OptimizerRow
from sgdf_lab.registry.spaces import DIGITS, Range, Space
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.numbers import is_number

BETAS = ("beta1", "beta2")  # together the setting betas
GAIN_SHARE = "gain_share"  # of a cell: a constant gain, as a share of 1 - beta1


def space_of(optimizer: str, fixed: Mapping[str, Any], ends: Mapping[str, Any]) -> Space:
    """The settings to search, without those that are `fixed`; `ends` replace those declared.

    An optimizer without a declared space has a learning rate from a tenth to ten times its own.
    """
    row = optimizers.find(optimizer)
    declared = row.space or {"lr": around_default(row)}
    for name in ends:
        if name not in declared:
            raise unknown(f"setting in the space of {optimizer}:", name, declared)
    found = {}
    for name, known in declared.items():
        if name in fixed or (name in BETAS and "betas" in fixed):
            continue
        if name == "gain_scale" and GAIN_SHARE in fixed:
            continue
        low, high = pair(name, ends[name]) if name in ends else (known.low, known.high)
        found[name] = Range(low, high, known.memory)
    if not found:
        raise UserError(f"{optimizer}: all settings are given, and none is left to search")
    return found


def pair(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UserError(f"the space of {name} is a list of two numbers, not {value!r}")
    return value[0], value[1]


def around_default(row: OptimizerRow) -> Range:
    rate = row.settings.get("lr", 1e-3)
    return Range(rate / 10, rate * 10)


def settings_at(space: Space, point: Mapping[str, float]) -> dict[str, Any]:
    """The settings of a trial, given for each the part of its range."""
    values: dict[str, Any] = {name: space[name].at(part) for name, part in point.items()}
    betas = [values.pop(name) for name in BETAS if name in values]
    return {**values, "betas": betas} if betas else values


def with_constant_gain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A share of 1 - beta1 as the gain that it is: 1 is Nesterov's momentum, 0 a plain average.

    >>> with_constant_gain({"betas": [0.9, 0.99], "gain_share": 0.5})
    {'betas': [0.9, 0.99], 'gain_power': 0.0, 'gain_scale': 0.05}
    """
    if GAIN_SHARE not in settings:
        return dict(settings)
    others = {name: value for name, value in settings.items() if name != GAIN_SHARE}
    share = settings[GAIN_SHARE]
    if not is_number(share) or share < 0:
        raise UserError(f"{GAIN_SHARE} is a number of at least 0, not {share!r}")
    if "betas" not in others:
        raise UserError(
            f"{GAIN_SHARE} is a share of 1 - beta1: give betas, or let them be searched"
        )
    betas = others["betas"]
    if not isinstance(betas, list | tuple) or not betas or not is_number(betas[0]):
        raise UserError(f"betas is a pair of numbers, not {betas!r}")
    gain = float(f"{share * (1 - betas[0]):.{DIGITS}g}")
    return {**others, "gain_power": 0.0, "gain_scale": gain}

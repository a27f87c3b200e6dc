"""What a search varies: for every optimizer, the ranges of its settings.

One place for all, so that a reader sees whether a comparison is fair. A file of a sweep may give
other ends of a range.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sgdf_lab import optimizers
from sgdf_lab.optimizers.filtered import NAME
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.numerics import is_number

DIGITS = 4  # of a trial's settings: so that they do not depend on the last place of a logarithm


@dataclass(frozen=True)
class Range:
    """A setting between two ends, with equal chances in the logarithm.

    With `memory` it is a decay rate, and the logarithm that of one minus it: 0.9, 0.99 and 0.999
    are as far from each other.
    """

    low: float
    high: float
    memory: bool = False

    def __post_init__(self) -> None:
        both = is_number(self.low) and is_number(self.high)
        top = 1 if self.memory else math.inf
        if not both or not 0 < self.low < self.high < top:
            limit = ", both below 1" if self.memory else ""
            raise UserError(f"a range is two positive numbers, the smaller one first{limit}")

    def at(self, part: float) -> float:
        """The value that so large a part of the range is below.

        >>> Range(0.01, 1.0).at(0.5), Range(0.9, 0.999, memory=True).at(0.5)
        (0.1, 0.99)
        """
        low, high = (1 - self.low, 1 - self.high) if self.memory else (self.low, self.high)
        value = low * (high / low) ** part
        rounded = float(f"{value:.{DIGITS}g}")
        return float(f"{1 - rounded:.8g}") if self.memory else rounded


Space = dict[str, Range]

BETAS = ("beta1", "beta2")  # together the setting betas
GAIN_SHARE = "gain_share"  # of a cell: a constant gain, as a share of 1 - beta1

MOMENTUM = Range(0.8, 0.98, memory=True)
SECOND = Range(0.9, 0.999, memory=True)
GAIN = Range(0.25, 4.0)
L2 = Range(5e-5, 5e-3)
DECOUPLED = Range(1e-2, 1.0)

ADAMS: Space = {
    "lr": Range(3e-4, 1e-2), "beta1": MOMENTUM, "beta2": SECOND, "weight_decay": DECOUPLED
}  # fmt: skip
SPACES: dict[str, Space] = {
    "sgd": {"lr": Range(3e-3, 1.0), "momentum": MOMENTUM, "weight_decay": L2},
    "sgd-nesterov": {"lr": Range(3e-3, 1.0), "momentum": MOMENTUM, "weight_decay": L2},
    "sgd-ema": {"lr": Range(3e-2, 10.0), "beta": MOMENTUM, "weight_decay": L2},
    "sgdf": {
        "lr": Range(3e-2, 10.0), "beta1": MOMENTUM, "beta2": SECOND, "weight_decay": L2,
        "gain_scale": GAIN,
    },
    "adamw": ADAMS,
    "nadamw": ADAMS,
    "adabelief": ADAMS,
    "filter-adamw": {**ADAMS, "gain_scale": GAIN},
    "schedule-free-adamw": ADAMS,
    "soap": ADAMS,
    "lion": {**ADAMS, "lr": Range(3e-5, 1e-3), "weight_decay": Range(0.1, 10.0)},
    "muon": {"lr": Range(3e-4, 1e-2), "momentum": MOMENTUM, "weight_decay": DECOUPLED},
}  # fmt: skip


def space_of(optimizer: str, fixed: Mapping[str, Any], ends: Mapping[str, Any]) -> Space:
    """The settings to search, without those that are `fixed`; `ends` replace those declared.

    An optimizer without a declared space has a learning rate from a tenth to ten times its own.
    """
    declared = SPACES.get(optimizer.removeprefix(NAME)) or {"lr": around_default(optimizer)}
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


def around_default(optimizer: str) -> Range:
    rate = optimizers.find(optimizer).settings.get("lr", 1e-3)
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

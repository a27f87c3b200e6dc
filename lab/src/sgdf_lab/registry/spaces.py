"""Ranges of settings that a search varies, with equal chances in the logarithm."""

import math
from dataclasses import dataclass

from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numbers import is_number

DIGITS = 4  # of a trial's settings: so that they do not depend on the last place of a logarithm


@dataclass(frozen=True)
class Range:
    """A setting between two ends, log-uniform.

    With `memory` it is a decay rate, and the logarithm is that of one minus it: 0.9, 0.99 and 0.999
    are equally far from each other.
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
        """The value at quantile `part` of the range.

        >>> Range(0.01, 1.0).at(0.5), Range(0.9, 0.999, memory=True).at(0.5)
        (0.1, 0.99)
        """
        low, high = (1 - self.low, 1 - self.high) if self.memory else (self.low, self.high)
        value = low * (high / low) ** part
        rounded = float(f"{value:.{DIGITS}g}")
        return float(f"{1 - rounded:.8g}") if self.memory else rounded


Space = dict[str, Range]

MOMENTUM = Range(0.8, 0.98, memory=True)
SECOND = Range(0.9, 0.999, memory=True)
GAIN = Range(0.25, 4.0)
L2 = Range(5e-5, 5e-3)
DECOUPLED = Range(1e-2, 1.0)


def sgd_space(low: float, high: float, decay_rate: str) -> Space:
    """The space of SGD with momentum; `decay_rate` is the name of its setting."""
    return {"lr": Range(low, high), decay_rate: MOMENTUM, "weight_decay": L2}


ADAM_SPACE: Space = {
    "lr": Range(3e-4, 1e-2), "beta1": MOMENTUM, "beta2": SECOND, "weight_decay": DECOUPLED
}  # fmt: skip
#: Of matrix steps behind a filter; their rate and that of the other parameters.
MATRIX_SPACE: Space = {
    "lr": Range(3e-4, 3e-2),
    "aux_lr": Range(3e-4, 3e-2),
    "beta1": MOMENTUM,
    "beta2": SECOND,
    "weight_decay": DECOUPLED,
    "gain_scale": Range(0.03, 0.3),
}

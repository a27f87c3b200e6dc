"""What a search varies: ranges of settings, and choices among values."""

import math
from dataclasses import dataclass
from typing import Any

from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.numbers import is_number

DIGITS = 4  # of a trial's settings: so that they do not depend on the last place of a logarithm
SCALES = ("log", "memory", "linear")


@dataclass(frozen=True)
class Range:
    """A number between two ends.

    Its scale is "log", with equal chances in the logarithm; "memory", for a decay rate, with the
    logarithm of one minus it, so that 0.9, 0.99 and 0.999 are equally far from each other; or
    "linear".
    """

    low: float
    high: float
    scale: str = "log"
    integer: bool = False

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale of a range", self.scale, SCALES)
        least, most = {"log": (0, math.inf), "memory": (0, 1), "linear": (-math.inf, math.inf)}[
            self.scale
        ]
        both = is_number(self.low) and is_number(self.high)
        if not both or not least < self.low < self.high < most:
            kind = "numbers" if self.scale == "linear" else "positive numbers"
            limit = ", both below 1" if self.scale == "memory" else ""
            raise UserError(f"a range is two {kind}, the smaller one first{limit}")

    def at(self, part: float) -> float:
        """The value at quantile `part` of the range.

        >>> Range(0.01, 1.0).at(0.5), Range(0.9, 0.999, "memory").at(0.5)
        (0.1, 0.99)
        >>> Range(0, 1, "linear").at(0.5), Range(1, 100, integer=True).at(0.25)
        (0.5, 3)
        """
        if self.scale == "linear":
            value = self.low + part * (self.high - self.low)
        else:
            low, high = self.low, self.high
            if self.scale == "memory":
                low, high = 1 - low, 1 - high
            value = low * (high / low) ** part
        if self.integer:
            return round(value)
        rounded = float(f"{value:.{DIGITS}g}")
        return float(f"{1 - rounded:.8g}") if self.scale == "memory" else rounded

    def __str__(self) -> str:
        how = {"log": "", "memory": ", log of 1 - it", "linear": ", linear"}[self.scale]
        return f"{self.low:g} to {self.high:g}{how}"


@dataclass(frozen=True)
class Choice:
    """One of several values, with equal chances."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise UserError("choices are at least two values")

    def at(self, part: float) -> Any:
        """
        >>> [Choice(("a", "b")).at(part) for part in (0.0, 0.49, 0.5, 1.0)]
        ['a', 'a', 'b', 'b']
        """
        return self.values[min(int(part * len(self.values)), len(self.values) - 1)]

    def __str__(self) -> str:
        return " or ".join(map(str, self.values))


Space = dict[str, Range | Choice]

MOMENTUM = Range(0.8, 0.98, "memory")
SECOND = Range(0.9, 0.999, "memory")
GAIN = Range(0.25, 4.0)
L2 = Range(5e-5, 5e-3)
DECOUPLED = Range(1e-2, 1.0)


def sgd_space(low: float, high: float, decay_rate: str) -> Space:
    """The space of SGD with momentum; `decay_rate` is the name of its setting."""
    return {"lr": Range(low, high), decay_rate: MOMENTUM, "weight_decay": L2}


def adam_space(low: float = 3e-4, high: float = 1e-2, decay: Range = DECOUPLED) -> Space:
    """The space of an optimizer with Adam's settings, whose weight decay is decoupled or L2."""
    return {"lr": Range(low, high), "beta1": MOMENTUM, "beta2": SECOND, "weight_decay": decay}


ADAM_SPACE = adam_space()
AUX_RATE = Range(3e-4, 3e-2)  # of what is not a hidden matrix, beside a matrix step
#: Of matrix steps behind a filter; their rate and that of the other parameters.
MATRIX_SPACE: Space = {
    **adam_space(3e-4, 3e-2),
    "aux_lr": AUX_RATE,
    "gain_scale": Range(0.03, 0.3),
}

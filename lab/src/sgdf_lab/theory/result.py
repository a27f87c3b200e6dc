"""The result of checking a statement: numbers beside printed ones, a verdict, panels to draw."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.support.palette import BLUE

Array = NDArray[Any]  # of float64, or of integers on an axis

#: By name, in the paper's order and then our own: the words of each statement, and the axes of its
#: figures.
WORDS: dict[str, dict[str, Any]] = tomllib.loads(
    files("sgdf_lab.theory").joinpath("statements.toml").read_text("utf-8")
)

OURS = "not in the paper"  # the label of our own statements

HOLDS = "holds"
CONDITION = "holds under a condition the paper leaves out"
FAILS = "does not hold as printed"

#: A deviation counts once it is larger than this many standard errors.
STANDARD_ERRORS = 4.0


@dataclass(frozen=True)
class Check:
    """One number beside the printed one.

    `under` names the assumptions that it is checked under: "paper" the printed ones, "condition"
    those and the condition we add, "remark" none: the number only informs and does not count.
    """

    what: str
    printed: float
    relation: Literal["<=", ">=", "="]
    measured: float
    error: float = 0.0  #: the standard error of `measured`, 0 where it is exact
    under: Literal["paper", "condition", "remark"] = "paper"
    tolerance: float = 0.0  #: absolute, of a fitted or discretised value

    @property
    def ok(self) -> bool:
        """Whether the relation holds, up to rounding and the error of the measurement."""
        slack = STANDARD_ERRORS * self.error + self.tolerance + 1e-9 * abs(self.printed)
        excess = self.measured - self.printed
        if not np.isfinite(excess):
            return False
        if self.relation == "=":
            return bool(abs(excess) <= slack)
        return bool(excess <= slack if self.relation == "<=" else excess >= -slack)

    def as_json(self) -> dict[str, Any]:
        numbers = ("printed", "measured", "error", "tolerance")
        return (
            asdict(self) | {name: float(getattr(self, name)) for name in numbers} | {"ok": self.ok}
        )


@dataclass(frozen=True)
class Curve:
    """A line (or, with style "o", points) of a figure; `band` is a half-width around it."""

    label: str
    x: Sequence[float] | Array
    y: Sequence[float] | Array
    colour: str = BLUE
    style: str = "-"
    band: Sequence[float] | Array | None = None


Curves = Iterable[Curve]


@dataclass(frozen=True)
class Panel:
    title: str
    xlabel: str
    ylabel: str
    curves: tuple[Curve, ...]
    logx: bool = False
    logy: bool = False
    ylim: tuple[float, float] | None = None


@dataclass(frozen=True)
class Result:
    """A statement of the paper or of our own, its checks and their verdict."""

    name: str
    title: str
    label: str  #: the label in the paper's source, or of the section that holds it, or `OURS`
    claim: str
    assumptions: str
    checks: tuple[Check, ...]
    explanation: str
    panels: tuple[Panel, ...]
    condition: str | None = None  #: what the paper leaves out, if one condition makes it true
    key: str | None = None  #: the check shown in summaries (default: the first that fails)

    @property
    def verdict(self) -> str:
        """Derived only from the checks, so that a wrong bound or formula is noticed."""
        if all(check.ok for check in self.checks if check.under == "paper"):
            return HOLDS
        with_condition = [check.ok for check in self.checks if check.under == "condition"]
        return CONDITION if self.condition and with_condition and all(with_condition) else FAILS

    @property
    def counterexamples(self) -> tuple[Check, ...]:
        """The checks that fail under the printed assumptions."""
        return tuple(check for check in self.checks if check.under == "paper" and not check.ok)

    @property
    def headline(self) -> Check:
        """The most telling check: the one named by `key`, else a counterexample, else the first."""
        named = [check for check in self.checks if check.what == self.key]
        return (*named, *self.counterexamples, *self.checks)[0]

    def as_json(self) -> dict[str, Any]:
        """Everything but the curves."""
        words = ("name", "title", "label", "claim", "assumptions", "condition", "explanation")
        return {
            **{name: getattr(self, name) for name in words},
            "verdict": self.verdict,
            "headline": self.headline.what,
            "checks": [check.as_json() for check in self.checks],
            "counterexamples": [check.what for check in self.counterexamples],
        }


def stated(
    name: str, checks: Iterable[Check], *figures: Curves, key: str | None = None, **found: object
) -> Result:
    """The result of a statement of statements.toml, which has a panel for each of the figures.

    What was `found` fills the gaps of the explanation.
    """
    words = {word: text for word, text in WORDS[name].items() if word != "module"}
    if found:
        words["explanation"] = words["explanation"].format(**found)
    axes = words.pop("panels")
    panels = [Panel(curves=tuple(f), **a) for a, f in zip(axes, figures, strict=True)]
    return Result(name=name, checks=tuple(checks), panels=tuple(panels), key=key, **words)


def mean_and_error(samples: Array) -> tuple[float, float]:
    """The mean of independent samples and its standard error."""
    return float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(samples.size))


def variance_and_error(samples: Array) -> tuple[float, float]:
    """The variance and its standard error, from the spread of the squared deviations."""
    return mean_and_error((samples - samples.mean()) ** 2)


def exponent(x: Array, y: Array) -> float:
    """The p of y ~ x^p, by least squares in logarithms."""
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, 1e-300)), 1)[0])

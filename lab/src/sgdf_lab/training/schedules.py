"""Learning rates over a run, as pure functions of the step: resuming needs no state."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.numbers import is_number


@dataclass(frozen=True)
class Clock:
    """A step of a run, counted from 0; the lengths of the run and of its warm-up, in steps."""

    step: int
    steps: int
    warmup: int = 0

    @property
    def done(self) -> float:
        """The part of the run that is done: 0 at the first step, 1 after the last."""
        return self.step / self.steps

    @property
    def since_warmup(self) -> int:
        """Steps since the end of the warm-up; 0 before."""
        return max(self.step - self.warmup, 0)

    @property
    def fraction(self) -> float:
        """The part that is done of what follows the warm-up; 0 before."""
        return self.since_warmup / (self.steps - self.warmup)

    @property
    def ramp(self) -> float:
        """The factor of the warm-up: rises by equal steps, and is 1 after it."""
        return (self.step + 1) / (self.warmup + 1) if self.step < self.warmup else 1.0


@dataclass(frozen=True)
class Shape:
    """What a schedule depends on beside the step.

    Args:
        milestones: steps after which "step" multiplies the rate by `drop`; epochs in the settings
            of a run, from which the trainer makes steps.
        drop: the factor at a milestone.
        warmup: of a linear ramp at the start: a fraction of the run, or a number of steps.
        decay: the last part of the run, in which "wsd" falls to 0.
    """

    milestones: Sequence[int] = ()
    drop: float = 0.1
    warmup: float = 0
    decay: float = 0.2


Schedule = Callable[[Clock, Shape], float]

START, PEAK, END = 0.2, 0.23, 0.07  # of "triangle": arXiv:2404.00498


def triangle(now: Clock, shape: Shape) -> float:
    """Rises in a line from START to 1 at the part PEAK of the run, and falls in a line to END."""
    peak = int(PEAK * now.steps)
    if now.step < peak:
        return START + (1 - START) * now.step / peak
    return 1 + (END - 1) * (now.step - peak) / (now.steps - peak)


# Each returns the factor on the learning rate. The published one, "step", multiplies it by `drop`
# at every milestone. "cosine", "linear" and "inverse-sqrt" begin
# after the warm-up, so that they start at the full rate; milestones and `decay` count in the run.
# "triangle" has a warm-up of its own.
SCHEDULES: dict[str, Schedule] = {
    "step": lambda now, shape: shape.drop ** sum(m <= now.step for m in shape.milestones),
    "cosine": lambda now, shape: (1 + math.cos(math.pi * now.fraction)) / 2,
    "constant": lambda now, shape: 1.0,
    "inverse-sqrt": lambda now, shape: 1 / math.sqrt(now.since_warmup + 1),
    "linear": lambda now, shape: 1 - now.fraction,
    "wsd": lambda now, shape: min(1.0, (1 - now.done) / shape.decay),
    "triangle": triangle,
}


def check(name: str, shape: Shape) -> None:
    """Refuse what no run can have; `warmup_steps` refuses what is too long for a run."""
    if name not in tuple(SCHEDULES):
        raise unknown("schedule", name, SCHEDULES)
    for milestone in shape.milestones:
        if type(milestone) is not int:
            raise UserError(f"milestones are epochs, whole numbers, not {milestone!r}")
        if name == "step" and milestone < 1:
            raise UserError(f"milestones are epochs, counted from 1, not {milestone}")
    if name == "step" and shape.drop <= 0:
        raise UserError(f"drop is a positive number, not {shape.drop}")
    if not is_warmup(shape.warmup):
        raise UserError(
            "warmup is a fraction of the run below 1, or a whole number of steps, not "
            f"{shape.warmup!r}"
        )
    if name == "triangle" and shape.warmup:
        raise UserError("the schedule triangle has a warm-up of its own: leave warmup out")
    if not is_number(shape.decay) or not 0 < shape.decay <= 1:
        raise UserError(f"decay is a fraction of the run, above 0 and up to 1, not {shape.decay!r}")


def is_warmup(value: Any) -> bool:
    return is_number(value) and value >= 0 and (isinstance(value, int) or value < 1)


def warmup_steps(name: str, shape: Shape, steps: int) -> int:
    """The length of the warm-up of a run, in steps; 0: none."""
    length = shape.warmup
    if isinstance(length, float):  # a fraction; the shortest is a step, and a step remains
        length = min(max(round(length * steps), 1), steps - 1) if length else 0
    if length and length >= steps:
        raise UserError(f"a warmup of {length} steps is too long for a run of {steps} steps")
    if name == "wsd" and length > round((1 - shape.decay) * steps):
        raise UserError(
            f"a warmup of {length} steps and a decay over {shape.decay:g} of the run are together "
            f"longer than the run of {steps} steps"
        )
    return length


def factors(name: str, shape: Shape, *, first: int, count: int, steps: int) -> list[float]:
    """The factor on the learning rate for `count` steps from `first` on, of a run of `steps`."""
    schedule = SCHEDULES[name]
    warmup = warmup_steps(name, shape, steps)
    clocks = (Clock(first + i, steps, warmup) for i in range(count))
    return [now.ramp * schedule(now, shape) for now in clocks]

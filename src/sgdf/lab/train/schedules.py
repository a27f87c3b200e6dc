"""Learning rates over a run, as pure functions of the step: resuming needs no state."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgdf.support.errors import UserError, unknown


@dataclass(frozen=True)
class Clock:
    """A step of a run, counted from 0, and the lengths of an epoch and of the run."""

    step: int
    steps_per_epoch: int
    epochs: int

    @property
    def epoch(self) -> int:
        return self.step // self.steps_per_epoch

    @property
    def fraction(self) -> float:
        """The part of the run that is done: 0 at the first step, 1 after the last."""
        return self.step / (self.steps_per_epoch * self.epochs)


Schedule = Callable[[Clock, Sequence[int], float], float]

# Each returns the factor on the learning rate. The published one, "step", multiplies it by `drop`
# once as many epochs as a milestone have been trained.
SCHEDULES: dict[str, Schedule] = {
    "step": lambda now, milestones, drop: drop ** sum(m <= now.epoch for m in milestones),
    "cosine": lambda now, milestones, drop: (1 + math.cos(math.pi * now.fraction)) / 2,
    "constant": lambda now, milestones, drop: 1.0,
    "inverse-sqrt": lambda now, milestones, drop: 1 / math.sqrt(now.step + 1),
}


def check(name: str, milestones: Sequence[int], drop: float) -> None:
    if name not in tuple(SCHEDULES):
        raise unknown("schedule", name, SCHEDULES)
    for milestone in milestones:
        if type(milestone) is not int:
            raise UserError(f"milestones are epochs, whole numbers, not {milestone!r}")
        if name == "step" and milestone < 1:
            raise UserError(f"milestones are epochs, counted from 1, not {milestone}")
    if name == "step" and drop <= 0:
        raise UserError(f"drop is a positive number, not {drop}")


def factors(
    name: str,
    *,
    epoch: int,
    epochs: int,
    steps_per_epoch: int,
    milestones: Sequence[int],
    drop: float,
) -> list[float]:
    """The factor on the learning rate for each step of an epoch (counted from 0)."""
    schedule = SCHEDULES[name]
    first = epoch * steps_per_epoch
    clocks = (Clock(first + i, steps_per_epoch, epochs) for i in range(steps_per_epoch))
    return [schedule(now, milestones, drop) for now in clocks]

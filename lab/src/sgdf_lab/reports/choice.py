"""The luck of a choice: how far apart two tunings of the same optimizer would have come out.

A setting is chosen because its runs came out well, and a part of that is luck. A test over the
seeds of two chosen settings says whether the *settings* differ, not whether the optimizers do: with
settings about as far apart as the noise of a run, two names of the same optimizer would get a
verdict at "p < 0.01" in up to 40 % of comparisons. So the choice is made again, many times, with
other noise: the quality of each candidate is drawn around what was measured of it, its runs around
that, and the same rule chooses. `tests/report/test_error_rate.py` holds the rate of wrong verdicts.

What this does not cover is the luck of which settings were tried.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.special  # type: ignore[import-untyped]

from sgdf_lab.sweeps.contestants import Contestant
from sgdf_lab.tasks import Metric

DRAWS = 4000  # tunings
STREAMS = (20260101, 20260102)  # seeds: two choices are compared by independent draws

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Choice:
    """What was known when a setting was chosen: the validation values of all candidates.

    Attributes:
        trials: the values of each candidate; those that diverged or failed are left out.
        chosen: the place of the chosen one among them.
        finals: of finalists, by place, the values with other seeds, which decided.
        seeds: values of the chosen one that had no part in the choice.
        lower_is_better: whether they are losses.
    """

    trials: Sequence[Sequence[float]]
    chosen: int
    finals: Mapping[int, Sequence[float]] = field(default_factory=dict)
    seeds: Sequence[float] = ()
    lower_is_better: bool = True

    @cached_property
    def noise(self) -> float:
        """The standard deviation of one run of a setting, pooled over all that have several."""
        groups = [*self.trials, *self.finals.values(), self.seeds]
        squares, freedom = 0.0, 0
        for values in groups:
            if len(values) > 1:
                squares += statistics.variance(values) * (len(values) - 1)
                freedom += len(values) - 1
        return math.sqrt(squares / freedom) if freedom else 0.0

    @cached_property
    def lucks(self) -> "tuple[Luck, ...]":
        """What `luck` draws from each stream."""
        return tuple(luck(self, np.random.default_rng(seed)) for seed in STREAMS)


@dataclass(frozen=True)
class Luck:
    """The luck of a choice, in the units of the metric, positive where values are larger."""

    realised: float  # the quality of the chosen setting minus what tuning gives on average
    spread: Array  # the same for each tuning that was drawn


NO_LUCK = Luck(0.0, np.zeros(1))


def luck(choice: Choice, generator: np.random.Generator) -> Luck:
    """Make the choice again."""
    if len(choice.trials) < 2 or choice.noise == 0:
        return NO_LUCK
    sign = 1 if choice.lower_is_better else -1
    centre, error = known_quality(choice, sign)
    shape = (DRAWS, len(centre))
    quality = centre + error * generator.standard_normal(shape)
    runs = np.array([len(values) for values in choice.trials])
    seen = quality + choice.noise / np.sqrt(runs) * generator.standard_normal(shape)
    if choice.finals:
        best = np.argsort(seen, axis=1)[:, : len(choice.finals)]
        again = choice.noise / math.sqrt(max(map(len, choice.finals.values())))
        noise = again * generator.standard_normal(best.shape)
        place = np.argmin(np.take_along_axis(quality, best, 1) + noise, axis=1)
        chosen = np.take_along_axis(best, place[:, None], 1)
    else:
        chosen = np.argmin(seen, axis=1)[:, None]
    found = np.take_along_axis(quality, chosen, 1)[:, 0]
    return Luck(sign * float(centre[choice.chosen] - found.mean()), sign * (found - found.mean()))


def known_quality(choice: Choice, sign: int) -> tuple[Array, Array]:
    """What was measured of each candidate last, lower is better, and its standard error."""
    measured = [[*choice.finals.get(i, values)] for i, values in enumerate(choice.trials)]
    centre = sign * np.array([statistics.fmean(values) for values in measured])
    counts = np.array([len(values) for values in measured])
    if choice.seeds:
        # What was chosen looked better than it is; never believe that it is better than it looked.
        own = sign * statistics.fmean(choice.seeds)
        centre[choice.chosen] = max(centre[choice.chosen], own)
        counts[choice.chosen] = len(choice.seeds)
    return centre, choice.noise / np.sqrt(counts)


def choice_of(contestant: Contestant) -> Choice | None:
    """How a tuned sweep chose a contestant's setting; None if it chose none."""
    if contestant.chosen is None:
        return None
    return choice_between(
        {trial.config.name: [trial.validation] for trial in contestant.trials},
        contestant.chosen.config.name,
        contestant.chosen.config.task_definition.metric,
        finals={f.trial.config.name: [r.validation for r in f.runs] for f in contestant.finals},
        seeds=known([run.validation for run in contestant.seeds]),
    )


Values = Sequence[float | None]  # of runs; None of those that were lost


def choice_between(
    trials: Mapping[str, Values],
    chosen: str,
    metric: Metric,
    *,
    finals: Mapping[str, Values] | None = None,
    seeds: Sequence[float] = (),
) -> Choice:
    """How one of these was chosen, by name; who lost more runs is chosen in no other tuning."""
    last = {name: own for name, own in (finals or {}).items() if own}
    lost = {name: [*values].count(None) for name, values in {**trials, **last}.items()}
    able = [name for name, own in trials.items() if known(own) and lost[name] <= lost[chosen]]
    return Choice(
        trials=[known(trials[name]) for name in able],
        chosen=able.index(chosen),
        finals={
            able.index(name): own
            for name, values in last.items()
            if name in able and (own := known(values))
        },
        seeds=seeds,
        lower_is_better=metric.lower_is_better,
    )


def known(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def choices_of(contestants: Iterable[Contestant]) -> dict[Hashable, Choice | None]:
    """The same by the cell of the runs."""
    return {
        c.chosen.record.config.cell_key: choice_of(c)
        for c in contestants
        if c.chosen and c.chosen.record
    }


def p_with_luck(
    mean: float, error: float, n: int, own: Choice | None, reference: Choice | None
) -> float:
    """The p value of a mean difference over n seeds, if both settings were chosen.

    It is the share of pairs of tunings of equals that come out at least as far apart. The luck
    that the choices are seen to have had counts against a difference, never for it.

    Args:
        mean: the difference.
        error: its standard error, over the seeds.
        n: how many seeds.
        own: the choice of the one.
        reference: the choice of the other.
    """
    first, second = (choice.lucks if choice else (NO_LUCK,) * 2 for choice in (own, reference))
    pairs = [(first[0], second[1]), (first[1], second[0])]  # the same from the other's side
    return statistics.fmean(p_of_tunings(mean, error, n, *pair) for pair in pairs)


def p_of_tunings(mean: float, error: float, n: int, own: Luck, reference: Luck) -> float:
    without = mean - (own.realised - reference.realised)
    size = min(abs(mean), abs(without)) if mean * without > 0 else 0.0
    apart = own.spread - reference.spread
    tails = (scipy.special.stdtr(n - 1, (side * apart - size) / error) for side in (1, -1))
    return float(sum(np.mean(tail) for tail in tails))

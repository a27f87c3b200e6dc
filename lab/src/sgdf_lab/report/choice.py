"""The luck of a choice: how far apart two tunings of the same optimizer would have come out.

A setting is chosen because its runs came out well, and a part of that is luck. A test over the
seeds of two chosen settings says whether the *settings* differ, not whether the optimizers do: with
settings about as far apart as the noise of a run, two names of the same optimizer would get a
verdict at "p < 0.01" in up to 40 % of comparisons. So the choice is made again, many times, with
other noise: the quality of each candidate is drawn around what was measured of it, its runs around
that, and the same rule chooses. `tests/report/test_error_rate.py` holds the rate of wrong verdicts.

What this does not cover is the luck of which settings were tried: they are the same for everybody.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.stats  # type: ignore[import-untyped]

DRAWS = 2000  # tunings
SEED = 20260101

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

    @property
    def noise(self) -> float:
        """The standard deviation of one run of a setting, pooled over all that have several."""
        groups = [*self.trials, *self.finals.values(), self.seeds]
        squares, freedom = 0.0, 0
        for values in groups:
            if len(values) > 1:
                squares += statistics.variance(values) * (len(values) - 1)
                freedom += len(values) - 1
        return math.sqrt(squares / freedom) if freedom else 0.0


@dataclass(frozen=True)
class Luck:
    """Of a choice, in the units of the metric, positive where values are larger."""

    realised: float  # the quality of the chosen setting minus what tuning gives on average
    spread: Array  # the same for each tuning that was drawn


def luck(choice: Choice | None, generator: np.random.Generator, draws: int = DRAWS) -> Luck:
    """Make the choice again; without a choice there is no luck."""
    if choice is None or len(choice.trials) < 2 or choice.noise == 0:
        return Luck(0.0, np.zeros(draws))
    sign = 1 if choice.lower_is_better else -1
    centre, error = known_quality(choice, sign)
    shape = (draws, len(centre))
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
    generator = np.random.default_rng(SEED)
    first, second = luck(own, generator), luck(reference, generator)
    without = mean - (first.realised - second.realised)
    size = min(abs(mean), abs(without)) if mean * without > 0 else 0.0
    apart = first.spread - second.spread
    t = scipy.stats.t(n - 1)
    return float(np.mean(t.sf((size - apart) / error) + t.sf((size + apart) / error)))

"""The arithmetic of every comparison: what is compared, paired tests, the rule of the verdict.

`sgdf report`, the page of `sgdf sweep`, `sgdf evidence` and the documentation all use these.

No permutation test stands beside the t test: with n seeds its p value is at least 2^(1-n), so that
six seeds give 0.03 at best, and a verdict takes eight, or more after Holm's correction.
"""

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import scipy.stats  # type: ignore[import-untyped]
from opda.nonparametric import EmpiricalDistribution  # type: ignore[import-untyped]

from sgdf_lab.reports.choice import Choice, p_with_luck
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.sweeps.contestants import PlannedRun
from sgdf_lab.tasks import Metric, Task

CONFIDENCE = 0.95
#: A difference counts if its p value, with the luck of the choices and after Holm's correction, is
#: below this: then at most so many comparisons of equals get a verdict. Equals have noise of the
#: same distribution. By their seeds only, simulated: 1.0 % with normal noise, less with heavy tails
#: or skew, 1.2 % with uniform noise. Where only the means are equal, and the noise is very skewed
#: and wider for some, it is up to 4 %: few seeds do not show rare bad runs.
SIGNIFICANCE = 0.01
TOLERANCE = 1e-9  # of a comparison of two rounded numbers
TEST_LOSS = "test_loss"
#: Beside a result that also chose.
SEEN = (
    "The result is the {}, by which the settings were chosen too: with test_tokens = N a run "
    "measures the loss on text that no choice has seen."
)
LOSS_DIGITS = 4  # of a loss on text


@dataclass(frozen=True)
class Spread:
    """A mean with the sample standard deviation, which a single value does not have."""

    mean: float
    std: float | None
    n: int


def spread(values: Collection[float]) -> Spread | None:
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.mean(values), std, len(values))


def result_metric(task: Task, finished: Iterable[RunRecord]) -> Metric:
    """What runs are compared by: a metric that no choice of settings has seen, if there is one.

    For text, whose own metric chooses the settings, it is the loss on test text if all finished
    runs have it; where they do not, `SEEN` says so.
    """
    if task.kind != "language":
        return task.metric
    lines = [record.metrics[-1] for record in finished]
    if lines and all(TEST_LOSS in line for line in lines):
        return dataclasses.replace(
            task.metric, key=TEST_LOSS, words="test loss", digits=LOSS_DIGITS
        )
    return dataclasses.replace(task.metric, digits=LOSS_DIGITS)


def validation_words(metric: Metric) -> str:
    """
    >>> from sgdf_lab.tasks import find
    >>> [validation_words(find(name).metric) for name in ("digits", "text")]
    ['validation accuracy', 'validation loss']
    """
    return metric.words.replace("test ", "validation ", 1)


@dataclass(frozen=True)
class Outcome:
    """What became of one setting: its final values by seed, and the seeds without one."""

    values: Mapping[int, float]
    lost: Collection[int] = ()  # diverged or failed
    missing: Collection[int] = ()  # not run yet, or not to the end
    choice: Choice | None = None  # how it was chosen, if it was


def outcome(runs: Iterable[PlannedRun], metric: Metric, choice: Choice | None = None) -> Outcome:
    """What became of the seeds of one setting."""
    by_seed = {run.config.seed: run for run in runs}
    finals = {seed: run.final(metric.key) for seed, run in by_seed.items()}
    values = {seed: value for seed, value in finals.items() if value is not None}
    lost = [seed for seed, run in by_seed.items() if run.is_lost]
    return Outcome(values, lost, by_seed.keys() - values.keys() - {*lost}, choice)


@dataclass(frozen=True)
class PairedDifference:
    """Differences between runs of the same seed: mean, 95 % t interval, two-sided p value.

    A single pair has neither interval nor p value; nor have differences that are all equal, which
    with few test images happens by chance and does not mean that there is no variance.
    """

    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    lost: tuple[int, ...] = ()  # seeds that one of the two lost
    missing: tuple[int, ...] = ()
    barred: tuple[str, ...] = ()  # verdicts that there cannot be, for what was lost or is missing
    p_holm: float | None = None  # corrected for all comparisons with the reference
    p_choice: float | None = None  # as p, with the luck of both choices
    p_verdict: float | None = None  # this, corrected: it decides
    verdict: str = ""  # "ahead" of the reference, "behind", or "" if no difference was found

    def as_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return {name: [*v] if isinstance(v, tuple) else v for name, v in values.items()}


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> PairedDifference:
    """The values minus the reference's, seed by seed.

    >>> found = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    >>> found.mean, round(found.p, 4)
    (2.0, 0.0742)
    >>> paired_difference([1.5, 2.5], [1.0, 2.0]).p is None
    True
    """
    differences = [own - other for own, other in zip(values, reference, strict=True)]
    if not differences:
        return PairedDifference(0)
    mean = statistics.mean(differences)
    # With a few hundred test images differences are often equal: that does not mean no variance.
    if all(math.isclose(difference, mean, abs_tol=TOLERANCE) for difference in differences):
        return PairedDifference(len(differences), mean)
    test = scipy.stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(CONFIDENCE)
    return PairedDifference(len(differences), mean, float(low), float(high), float(test.pvalue))


def compare(own: Outcome, reference: Outcome) -> PairedDifference:
    """Over the seeds that both finished, with those that one of them did not; no verdict yet."""
    seeds = sorted(own.values.keys() & reference.values.keys())
    values, others = ([x.values[seed] for seed in seeds] for x in (own, reference))
    found = paired_difference(values, others)
    p = found.p
    if p is not None and found.mean is not None and (own.choice or reference.choice):
        error = statistics.stdev(a - b for a, b in zip(values, others, strict=True))
        error /= math.sqrt(found.n)
        p = p_with_luck(found.mean, error, found.n, own.choice, reference.choice)
    one, other = ({*x.values, *x.lost, *x.missing} for x in (own, reference))
    lost = one & {*own.lost, *reference.lost}
    missing = {*own.missing, *reference.missing, *(one ^ other)} - lost  # without a plan, too
    barred = ("ahead",) * bool(own.lost or missing) + ("behind",) * bool(reference.lost or missing)
    return dataclasses.replace(
        found, p_choice=p, lost=tuple(sorted(lost)), missing=tuple(sorted(missing)), barred=barred
    )


def with_verdicts(
    differences: Sequence[PairedDifference], metric: Metric
) -> list[PairedDifference]:
    """All comparisons with one reference: their p values are corrected for each other."""
    corrected = (
        holm([difference.p for difference in differences]),
        holm([difference.p_choice for difference in differences]),
    )
    return [
        dataclasses.replace(found, p_holm=p_holm, p_verdict=p, verdict=verdict(found, p, metric))
        for found, p_holm, p in zip(differences, *corrected, strict=True)
    ]


def verdict(found: PairedDifference, p: float | None, metric: Metric) -> str:
    """Whether a contestant is "ahead" of the reference or "behind"; "" if no difference is found.

    Who lost a seed is not ahead by the others, and what is incomplete has no verdict.
    """
    word = clear_difference(found, p, metric)
    return "" if word in found.barred else word


def clear_difference(found: PairedDifference, p: float | None, metric: Metric) -> str:
    """The same by the p value only, whatever was lost."""
    if found.mean is None or p is None or p >= SIGNIFICANCE:
        return ""
    return "ahead" if (found.mean < 0) == metric.lower_is_better else "behind"


def sign_test(better: int, worse: int) -> float | None:
    """The two-sided p value of these wins and losses, if both were equally likely.

    >>> sign_test(3, 0), sign_test(2, 2), sign_test(0, 0)
    (0.25, 1.0, None)
    """
    if better + worse == 0:
        return None
    return float(scipy.stats.binomtest(better, better + worse).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of p values; those that are None are no comparisons and stay None.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[i] = largest
    return corrected


def expected_best(values: Sequence[float], *, lower_is_better: bool) -> list[float]:
    """The expected best of k of these values, drawn without replacement, for k = 1 to all.

    No confidence band is drawn around it: `opda`'s are for trials that are drawn independently,
    and here all contestants try the points of one sequence.

    >>> [round(value, 3) for value in expected_best([3.0, 1.0, 2.0], lower_is_better=True)]
    [2.0, 1.333, 1.0]
    """
    if not values:
        return []
    curve = EmpiricalDistribution(values).u_tuning_curve(
        range(1, len(values) + 1), minimize=lower_is_better
    )
    return [round(float(value), 12) for value in curve]  # so that halves are shown as halves


def share_within(
    values: Sequence[float | None], best: float, margin: float, *, lower_is_better: bool
) -> float:
    """The share of the values that are no further from the best than the margin; None never is.

    >>> share_within([1.0, 1.02, 1.5, None], 1.0, 0.02, lower_is_better=True)
    0.5
    """
    sign = 1 if lower_is_better else -1
    near = [v for v in values if v is not None and sign * (v - best) <= margin + TOLERANCE]
    return len(near) / len(values)


def median_or_never(values: Sequence[float | None]) -> float | None:
    """Median where None means "not reached"; None if at least half were not reached.

    >>> median_or_never([10, None, 30]), median_or_never([10, None]), median_or_never([])
    (30, None, None)
    """
    if not values:
        return None
    middle = statistics.median(math.inf if v is None else v for v in values)
    return None if math.isinf(middle) else middle

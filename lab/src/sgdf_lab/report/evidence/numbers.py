"""The arithmetic: paired tests, Holm's correction, expected best of k trials, tolerance."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import scipy.stats  # type: ignore[import-untyped]

from sgdf_lab.report.statistics import paired_interval

TOLERANCE = 1e-9  # of a comparison of two rounded numbers


@dataclass(frozen=True)
class PairedTest:
    """The differences between runs of the same seed: mean, 95 % t interval, two-sided p value.

    A single pair has neither interval nor p value; nor have differences that are all equal, which
    with few test images happens by chance and does not mean that there is no variance.
    """

    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def paired_test(differences: Sequence[float]) -> PairedTest:
    """
    >>> paired_test([1.0, 2.0, 3.0]).mean, round(paired_test([1.0, 2.0, 3.0]).p, 4)
    (2.0, 0.0742)
    >>> paired_test([0.5, 0.5])
    PairedTest(n=2, mean=0.5, low=None, high=None, p=None)
    """
    interval = paired_interval(differences)
    if interval.n == 0:
        return PairedTest(0)
    if interval.half_width is None:
        return PairedTest(interval.n, interval.mean)
    error = statistics.stdev(differences) / math.sqrt(interval.n)
    p = 2 * float(scipy.stats.t.sf(abs(interval.mean) / error, interval.n - 1))
    return PairedTest(interval.n, interval.mean, interval.low, interval.high, p)


def sign_test(better: int, worse: int) -> float | None:
    """The two-sided p value of so many wins and losses, if both were as likely.

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

    With the values in order from the worst, the i-th is the best of the k if it is drawn, and the
    other k - 1 are among the i - 1 before it: in C(i-1, k-1) of C(n, k) subsets.

    >>> expected_best([3.0, 1.0, 2.0], lower_is_better=True)
    [2.0, 1.3333333333333333, 1.0]
    """
    n = len(values)
    ordered = sorted(values, reverse=lower_is_better)
    return [
        math.fsum(math.comb(i, k - 1) / math.comb(n, k) * v for i, v in enumerate(ordered))
        for k in range(1, n + 1)
    ]


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
    """The median; None counts as never, and None is the answer if half or more are.

    >>> median_or_never([10, None, 30]), median_or_never([10, None]), median_or_never([])
    (30, None, None)
    """
    if not values:
        return None
    middle = statistics.median(math.inf if v is None else v for v in values)
    return None if math.isinf(middle) else middle

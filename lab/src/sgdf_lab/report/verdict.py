"""What a comparison shows, in plain words: who is ahead of the reference, who behind, by how much.

The rule is `numbers.verdict`; here it is only put into sentences.
"""

from collections.abc import Callable, Sequence

from sgdf_lab.report.numbers import SIGNIFICANCE
from sgdf_lab.report.statistics import Comparison, ComparisonRow
from sgdf_lab.tasks import Metric

NAMES = 4  # more than this many are counted instead of listed
RULE = f"p < {SIGNIFICANCE:g} after Holm's correction"

Named = tuple[str, ComparisonRow]


def headline(comparison: Comparison) -> str:
    """The verdict in one sentence; a second one names those on whom there is none."""
    names = short_names(comparison)
    reference = next((row for row in comparison.rows if row.is_reference), None)
    if reference is None or reference.final is None:
        return "No run has finished yet."
    ours = names[reference.label]
    others = [row for row in comparison.rows if row.label in names and row is not reference]
    if not others:
        return f"Only {ours} was run: there is nothing to compare it with."
    rows = [(names[row.label], row) for row in others if row.paired]
    if not rows:
        return f"Only {ours} has finished: there is nothing to compare it with yet."
    tested = [(name, row) for name, row in rows if row.p_holm is not None]
    untested = [(name, row) for name, row in rows if row.p_holm is None]
    sentences = [decision(comparison.result, ours, tested)] if tested else []
    return " ".join(sentences + without_verdict(ours, untested, alone=not tested))


def short_names(comparison: Comparison) -> dict[str, str]:
    """By label, without the settings that were not chosen: the optimizer's name if it is enough.

    It is not where some rows are of longer runs or other data.
    """
    kept = [row for row in comparison.rows if row.label not in comparison.set_aside]
    alike = len({row.cell.contest[1:] for row in kept}) <= 1
    optimizers = [row.optimizer for row in kept]
    return {
        row.label: short_name(row, optimizers.count(row.optimizer) if alike else len(kept))
        for row in kept
    }


def short_name(row: ComparisonRow, rows_of_optimizer: int) -> str:
    """
    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(optimizer="sgd", label="sgd, lr 0.1, momentum 0.5")
    >>> short_name(row, 1), short_name(row, 2)
    ('sgd', 'sgd (lr 0.1, momentum 0.5)')
    """
    settings = row.label.removeprefix(row.optimizer).removeprefix(", ")
    return f"{row.optimizer} ({settings})" if rows_of_optimizer > 1 and settings else row.optimizer


# --- with a p value -------------------------------------------------------------------------------


def decision(metric: Metric, ours: str, rows: Sequence[Named]) -> str:
    """Who is ahead of the reference and who behind, among those with a p value."""
    by_verdict = {
        word: [(name, row) for name, row in rows if row.verdict == word]
        for word in ("ahead", "behind", "")
    }
    parts = []
    for word in ("ahead", "behind"):
        if those := by_verdict[word]:
            verb = "is" if len(those) == 1 else "are"
            parts.append(f"{listed(those)} {verb} {word} by {amount(metric, those)}")
    unclear = by_verdict[""]
    if parts:
        end = f"; no difference found for {listed(unclear)}" if unclear else ""
        return f"Against {ours}, {'; '.join(parts)}{end}."
    if len(unclear) > 1:
        return (
            f"No difference found between {ours} and {listed(unclear, 'or')}: none has {RULE} "
            f"({seeds(unclear)})."
        )
    ((name, only),) = unclear
    return (
        f"No difference found between {ours} and {name}: {name} differs by "
        f"{difference(metric, only, signed)}, {p_words(only.p_holm)} ({seeds(unclear)})."
    )


def amount(metric: Metric, rows: Sequence[Named]) -> str:
    """The size of the differences without sign: "1.10 points (95 % interval 0.50 to 1.80, ...)"."""
    direction = "lower is better, " * metric.lower_is_better
    if len(rows) > 1:
        means = sorted(abs(mean_of(row)) for _, row in rows)
        least, most = metric.shown(means[0]), metric.shown(means[-1])
        return f"{least} to {most}{unit(metric)} ({direction}{RULE}, {seeds(rows)})"
    ((_, only),) = rows
    words = difference(metric, only, lambda metric, value: metric.shown(abs(value)))
    return f"{words} ({direction}{p_words(only.p_holm)}, {seeds(rows)})"


def difference(metric: Metric, row: ComparisonRow, shown: Callable[[Metric, float], str]) -> str:
    """The mean with its 95 % interval, the end nearer to zero first where signs are left out."""
    assert row.paired is not None
    assert row.paired.low is not None
    assert row.paired.high is not None
    ends = (row.paired.low, row.paired.high)
    low, high = ends if shown is signed else sorted(ends, key=abs)
    mean, least, most = (shown(metric, value) for value in (mean_of(row), low, high))
    return f"{mean}{unit(metric)}, 95 % interval {least} to {most}"


def mean_of(row: ComparisonRow) -> float:
    assert row.paired is not None
    assert row.paired.mean is not None
    return row.paired.mean


def p_words(p: float | None) -> str:
    """
    >>> p_words(0.0312), p_words(0.00002)
    ('p 0.031', 'p < 0.001')
    """
    assert p is not None
    return "p < 0.001" if p < 0.001 else f"p {p:.2g}"


def unit(metric: Metric) -> str:
    return " points" if metric.unit == "%" else f" in {metric.words}"


def signed(metric: Metric, value: float) -> str:
    return f"{value:+.{metric.digits}f}".replace("-", "−")


def seeds(rows: Sequence[Named]) -> str:
    counts = sorted({row.paired.n for _, row in rows if row.paired})
    return f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} seeds"


def listed(rows: Sequence[Named], last: str = "and") -> str:
    """
    >>> three = [(name, None) for name in ("adam", "lion", "sgd")]
    >>> listed(three), listed(three[:1]), listed(three * 2)
    ('adam, lion and sgd', 'adam', '6 others')
    """
    if len(rows) > NAMES:
        return f"{'any of ' * (last == 'or')}{len(rows)} others"
    *before, final = (name for name, _ in rows)
    return f"{', '.join(before)} {last} {final}" if before else final


# --- without a p value ----------------------------------------------------------------------------


def without_verdict(ours: str, rows: Sequence[Named], *, alone: bool) -> list[str]:
    """Why there is no verdict on these; `alone`: there is none on any."""

    def seeds_in(row: ComparisonRow) -> int:
        return row.paired.n if row.paired else 0

    reasons = {
        "no seed was run with both": [named for named in rows if seeds_in(named[1]) == 0],
        "one seed is not enough": [named for named in rows if seeds_in(named[1]) == 1],
        "the difference is the same in all seeds, which gives no interval": [
            named for named in rows if seeds_in(named[1]) > 1
        ],
    }
    present = {reason: which for reason, which in reasons.items() if which}
    if alone and len(present) == 1:
        (reason,) = present
        return [f"No verdict on {ours} against {listed(rows)}: {reason}."]
    return [f"No verdict on {listed(which)}: {reason}." for reason, which in present.items()]

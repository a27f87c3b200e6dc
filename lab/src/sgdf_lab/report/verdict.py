"""What a comparison shows, in plain words: who is ahead, by how much, and how sure that is.

Everything is said about the reference. It is ahead of another, or behind, only where the 95 %
interval of the paired differences excludes zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sgdf_lab.report.statistics import Comparison, ComparisonRow, PairedDifference
from sgdf_lab.tasks import Metric

NAMES = 4  # more than this many are counted instead of listed


@dataclass(frozen=True)
class Rival:
    """Another setting with a finished run, and its difference from the reference."""

    name: str
    difference: PairedDifference

    @property
    def has_interval(self) -> bool:
        return self.difference.half_width is not None


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
    rivals = [Rival(names[row.label], row.paired) for row in others if row.paired]
    if not rivals:
        return f"Only {ours} has finished: there is nothing to compare it with yet."
    decided = [rival for rival in rivals if rival.has_interval]
    undecided = [rival for rival in rivals if not rival.has_interval]
    sentences = [decision(comparison.metric, ours, decided)] if decided else []
    return " ".join(sentences + without_verdict(ours, undecided, alone=not decided))


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


# --- with an interval ----------------------------------------------------------------------------


def decision(metric: Metric, ours: str, rivals: Sequence[Rival]) -> str:
    """Who is ahead of whom, among those with an interval."""
    worse = [rival for rival in rivals if standing(metric, rival.difference) == "worse"]
    better = [rival for rival in rivals if standing(metric, rival.difference) == "better"]
    unclear = [rival for rival in rivals if standing(metric, rival.difference) == "unclear"]
    parts = []
    if worse:
        parts.append(f"ahead of {listed(worse)} by {amount(metric, worse)}")
    if better:
        parts.append(f"behind {listed(better)} by {amount(metric, better)}")
    if parts:
        end = f"; no difference found from {listed(unclear)}" if unclear else ""
        return f"{ours} is {' and '.join(parts)}{end}."
    if len(unclear) > 1:
        return (
            f"No difference found between {ours} and {listed(unclear, 'or')}: every 95 % interval "
            f"includes zero ({seeds(unclear)})."
        )
    (only,) = unclear
    low, high = (f"{signed(metric, x)}" for x in (only.difference.low, only.difference.high))
    return (
        f"No difference found between {ours} and {only.name}: {only.name} differs by "
        f"{signed(metric, only.difference.mean)}{unit(metric)}, and the 95 % interval, {low} to "
        f"{high}, includes zero ({seeds(unclear)})."
    )


def standing(metric: Metric, difference: PairedDifference) -> str:
    """Whether a difference from the reference is "better", "worse" or "unclear"."""
    if difference.low <= 0 <= difference.high:
        return "unclear"
    return "better" if (difference.mean < 0) == metric.lower_is_better else "worse"


def amount(metric: Metric, rivals: Sequence[Rival]) -> str:
    """The size of the differences without sign: "1.10 points (95 % interval 0.50 to 1.80, ...)"."""
    direction = "lower is better, " * metric.lower_is_better
    means = sorted(abs(rival.difference.mean) for rival in rivals)
    if len(rivals) > 1:
        least, most = metric.shown(means[0]), metric.shown(means[-1])
        about = "every 95 % interval excludes zero"
        return f"{least} to {most}{unit(metric)} ({direction}{about}, {seeds(rivals)})"
    (only,) = rivals
    ends = sorted(abs(end) for end in (only.difference.low, only.difference.high))
    low, high = map(metric.shown, ends)
    interval = f"95 % interval {low} to {high}"
    return f"{metric.shown(means[0])}{unit(metric)} ({direction}{interval}, {seeds(rivals)})"


def unit(metric: Metric) -> str:
    return " points" if metric.unit == "%" else f" in {metric.words}"


def signed(metric: Metric, value: float) -> str:
    return f"{value:+.{metric.digits}f}".replace("-", "−")


def seeds(rivals: Sequence[Rival]) -> str:
    counts = sorted({rival.difference.n for rival in rivals})
    return f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} seeds"


def listed(rivals: Sequence[Rival], last: str = "and") -> str:
    """
    >>> three = [Rival(name, PairedDifference(1)) for name in ("adam", "lion", "sgd")]
    >>> listed(three), listed(three[:1]), listed(three * 2)
    ('adam, lion and sgd', 'adam', '6 others')
    """
    if len(rivals) > NAMES:
        return f"{'any of ' * (last == 'or')}{len(rivals)} others"
    *before, final = (rival.name for rival in rivals)
    return f"{', '.join(before)} {last} {final}" if before else final


# --- without an interval -------------------------------------------------------------------------


def without_verdict(ours: str, rivals: Sequence[Rival], *, alone: bool) -> list[str]:
    """Why there is no verdict on these; `alone`: there is none on any."""
    reasons = {
        "no seed was run with both": [r for r in rivals if r.difference.n == 0],
        "one seed is not enough": [r for r in rivals if r.difference.n == 1],
        "the difference is the same in all seeds, which gives no interval": [
            r for r in rivals if r.difference.n > 1
        ],
    }
    present = {reason: which for reason, which in reasons.items() if which}
    if alone and len(present) == 1:
        (reason,) = present
        return [f"No verdict on {ours} against {listed(rivals)}: {reason}."]
    return [f"No verdict on {listed(which)}: {reason}." for reason, which in present.items()]

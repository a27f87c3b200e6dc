"""Several tasks side by side: every contestant against one reference, from their summaries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.optimizers import style
from sgdf_lab.reports.evidence import Summary
from sgdf_lab.reports.evidence.summary import PARTS, REFERENCES, TO_GO, counts
from sgdf_lab.reports.figures import Interval, draw_intervals
from sgdf_lab.reports.tables import Table
from sgdf_lab.reports.wording import NOTHING, signed
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.figures import STYLE, plain

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """A contestant: its difference to the reference on each task, None where it did not run."""

    label: str
    optimizer: str
    differences: tuple[Json | None, ...]

    def count(self, verdict: str) -> int:
        return sum(row is not None and row["verdict"] == verdict for row in self.differences)

    @property
    def tasks(self) -> int:
        return sum(row is not None for row in self.differences)


@dataclass(frozen=True)
class Across:
    """All contestants of the tasks that the reference took part in, the most often ahead first."""

    reference: str
    summaries: tuple[Summary, ...]
    standings: tuple[Standing, ...]


def references_of(summaries: Iterable[Summary]) -> list[str]:
    """The optimizers that everybody is compared with on some task, in the usual order."""
    found = {
        optimizers(summary)[comparison["reference"]]
        for summary in summaries
        for comparison in summary["comparisons"]
    }
    return [name for name in REFERENCES if name in found]


def across(summaries: Sequence[Summary], reference: str) -> Across:
    """Everybody against one, on all tasks where it is a reference.

    Args:
        summaries: of complete sweeps; one that is not is refused, since its p values may change.
        reference: the name of an optimizer, or a contestant's label.
    """
    found = [(s, c) for s in summaries if (c := comparison_with(s, reference)) is not None]
    if not found:
        known = [c["reference"] for s in summaries for c in s["comparisons"]]
        raise unknown("reference", reference, dict.fromkeys([*references_of(summaries), *known]))
    for summary, _ in found:
        if not is_complete(summary):
            raise UserError(f"{summary['name']} is not complete: `sgdf sweep` resumes it")
    own, *others = dict.fromkeys(comparison["reference"] for _, comparison in found)
    if others:
        raise UserError(
            f"{reference} is {own} on one task and {others[0]} on another: give one of these"
        )
    labels = dict.fromkeys(c["label"] for summary, _ in found for c in summary["contestants"])
    names = {label: name for summary, _ in found for label, name in optimizers(summary).items()}
    standings = [
        Standing(label, names[label], tuple(row_of(comparison, label) for _, comparison in found))
        for label in labels
        if label != own
    ]
    standings.sort(key=lambda s: s.count("behind") - s.count("ahead"))
    return Across(own, tuple(summary for summary, _ in found), tuple(standings))


def optimizers(summary: Summary) -> dict[str, str]:
    return {c["label"]: c["optimizer"] for c in summary["contestants"]}


def comparison_with(summary: Summary, reference: str) -> Json | None:
    names = optimizers(summary)
    for comparison in summary["comparisons"]:
        if reference in (comparison["reference"], names[comparison["reference"]]):
            found: Json = comparison
            return found
    return None


def row_of(comparison: Json, label: str) -> Json | None:
    return next((row for row in comparison["rows"] if row["contestant"] == label), None)


def is_complete(summary: Summary) -> bool:
    """Whether every planned run has ended, in whatever way."""
    return not any(counts(summary, part, TO_GO) for part in PARTS)


# --- as a table ----------------------------------------------------------------------------------


def table(found: Across) -> Table:
    rows = [
        (s.label, *map(difference_words, s.differences, found.summaries), counts_words(s))
        for s in found.standings
    ]
    units = dict.fromkeys(
        f"{s['metric']['words']} in {s['metric']['unit']}" for s in found.summaries
    )
    lower = {s["metric"]["words"] for s in found.summaries if s["metric"]["lower_is_better"]}
    better = f"; of a {' or '.join(sorted(lower))}, below 0 is better" if lower else ""
    caption = (
        f"The final value minus that of {found.reference}, both tuned with as many trials: the "
        f"mean over the seeds of {' or '.join(units)}{better}. Ahead or behind: p < "
        f"{found.summaries[0]['ahead']:g} with the luck of both choices, after Holm's correction "
        "on the task."
    )
    columns = [summary["name"] for summary in found.summaries]
    return Table(
        "across", f"Against {found.reference}", (*columns, "ahead, behind"), tuple(rows), caption
    )


def difference_words(row: Json | None, summary: Summary) -> str:
    if row is None or row["mean"] is None:
        return NOTHING
    mark = "*" * bool(row["lost"])
    return f"{signed(row['mean'], summary['metric']['digits'])}{mark} {row['verdict']}".rstrip()


def counts_words(standing: Standing) -> str:
    """
    >>> counts_words(Standing("K", "sgdf", ({"verdict": "ahead"}, None, {"verdict": ""})))
    '1, 0 of 2'
    """
    return f"{standing.count('ahead')}, {standing.count('behind')} of {standing.tasks}"


# --- as a figure ---------------------------------------------------------------------------------


def figure(found: Across) -> Figure:
    """A panel for each task, a line for each contestant: how much better it is, with intervals.

    Right of the line is better on every task, whether of a loss or of an accuracy. Full where the
    difference is clear after Holm's correction, hollow where it is not.
    """
    order = found.standings[::-1]
    with rc_context(STYLE):
        panels = len(found.summaries)
        size = (2.0 + 1.75 * panels, 1.5 + 0.25 * len(order))
        drawn = Figure(figsize=size, layout="constrained")
        all_axes = drawn.subplots(1, panels, sharey=True, squeeze=False)[0]
        for number, (axes, summary) in enumerate(zip(all_axes, found.summaries, strict=True)):
            draw_task(axes, summary, [(s.differences[number], s.label, s.optimizer) for s in order])
        all_axes[0].set_ylim(-0.7, len(order) - 0.3)
        all_axes[0].set_yticks(range(len(order)), [plain(s.label) for s in order])
        words = f"better than {found.reference} by … (full: p < {found.summaries[0]['ahead']:g})"
        drawn.supxlabel(plain(words), fontsize=9)
    return drawn


def draw_task(axes: Axes, summary: Summary, rows: Sequence[tuple[Json | None, str, str]]) -> None:
    """Each row is a difference, the label and the optimizer; None for who did not run."""
    leads = {}
    for height, (row, label, optimizer) in enumerate(rows):
        if row is not None and row["low"] is not None:
            own, colour = lead(row, summary), style(optimizer).colour
            leads[height] = Interval(
                label, own["mean"], own["low"], own["high"], row["verdict"], colour
            )
    draw_intervals(axes, leads, summary["metric"]["digits"])
    axes.tick_params(axis="x", labelsize=8)
    axes.locator_params(axis="x", nbins=4)
    unit = "points" if summary["metric"]["unit"] == "%" else summary["metric"]["unit"]
    axes.set_title(plain(in_two_lines(summary["name"])), fontsize=8.5, fontweight="normal")
    axes.set_xlabel(plain(unit), fontsize=8.5)


def lead(row: Json, summary: Summary) -> Json:
    """The difference, with the sign that makes more better."""
    if not summary["metric"]["lower_is_better"]:
        return row
    return {**row, "mean": -row["mean"], "low": -row["high"], "high": -row["low"]}


def in_two_lines(name: str) -> str:
    """
    >>> in_two_lines("gpt-tiny-encyclopedia"), in_two_lines("digits")
    ('gpt-tiny-\\nencyclopedia', 'digits')
    """
    first, hyphen, last = name.rpartition("-")
    return f"{first}-\n{last}" if hyphen else name

"""A comparison in words: its title, the text of its table, the summary and the notes below."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sgdf_lab import paper
from sgdf_lab.paper import PublishedValue
from sgdf_lab.report.cells import RunCell
from sgdf_lab.report.labels import NO_BREAK, visible
from sgdf_lab.report.numbers import PairedDifference, Spread
from sgdf_lab.report.statistics import Comparison, ComparisonRow
from sgdf_lab.report.verdict import RULE, headline
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.tasks import Metric

NOTHING = "–"


def title(comparison: Comparison) -> str:
    cell = comparison.cells[0]
    model, task = cell.config.model, cell.task.name.removeprefix("finetune-")
    words = " on ".join(paper.TITLES.get(name, visible(name)) for name in (model, task))
    return words if task == cell.task.name else f"Fine-tuning {words}"


def common_protocol(cells: Sequence[RunCell]) -> str:
    """The part of the protocol that all cells share."""
    first, *others = (cell.protocol for cell in cells)
    shown = {name: words for name, words in first.items() if words and name != "norms"}
    return ", ".join(w for name, w in shown.items() if all(o.get(name) == w for o in others))


# --- runs ----------------------------------------------------------------------------------------


def unfinished_runs(cell: RunCell) -> str:
    """The runs that did not finish, and why: "2 diverged in epoch 3, 7"."""
    words = []
    unit, interval = cell.config.unit, cell.config.interval
    diverged = [str(len(r.metrics) * interval) for r in cell.records if r.status == "diverged"]
    if diverged:
        words.append(f"{len(diverged)} diverged in {unit} {', '.join(diverged)}")
    failed = sum(record.status == "failed" for record in cell.records)
    if failed:
        words.append(f"{failed} failed")
    unfinished = [str(len(r.metrics) * interval) for r in cell.records if r.status == "unfinished"]
    if unfinished:
        where = f"{unit} {', '.join(unfinished)} of {cell.config.epochs * interval}"
        words.append(f"{len(unfinished)} unfinished at {where}")
    if cell.missing:
        seeds = f"seed{'s' * (len(cell.missing) > 1)} {', '.join(map(str, cell.missing))}"
        words.append(f"{len(cell.missing)} missing ({seeds})" if cell.records else "missing")
    return "; ".join(words)


def status(record: RunRecord) -> str:
    if record.finished:
        return f"finished, {record.metric.shown(record.final)} {record.metric.unit}".rstrip()
    unit, interval = record.config.unit, record.config.interval
    where = f"{unit} {len(record.metrics) * interval}"
    if record.status == "diverged":
        return f"diverged in {where}"
    return f"{record.status} at {where} of {record.config.epochs * interval}"


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableColumn:
    """A column of the table, in the terminal and on the page."""

    title: str
    text: Callable[[ComparisonRow], str]


def columns(comparison: Comparison) -> list[TableColumn]:
    """The columns beside the labels, without those that would be empty."""
    digits, result = comparison.metric.digits, comparison.result
    is_other = result.key != comparison.metric.key
    possible = [
        TableColumn("best", lambda row: counted(row.best, digits)),
        TableColumn(
            f"final {result.words}" if is_other else "final",
            lambda row: counted(row.final, result.digits),
        ),
        *(
            TableColumn(f"final {metric.words}", partial(other_metric, i))
            for i, metric in enumerate(comparison.metrics[1:])
        ),
        TableColumn("validation", lambda row: counted(row.validation, digits)),
        TableColumn("published best", lambda row: spread(row.published)),
        TableColumn("best − published", difference_to_published),
        *(
            TableColumn(f"published {metric.words}", partial(other_published, i))
            for i, metric in enumerate(comparison.metrics[1:])
        ),
        TableColumn(
            f"final, against {comparison.reference}: 95 % interval",
            lambda row: against_reference(row, result.digits),
        ),
        TableColumn(f"per {comparison.unit}", seconds_per_epoch),
        TableColumn(target(comparison), time_to_target),
    ]
    empty = {NOTHING, "reference"}
    return [c for c in possible if {c.text(row) for row in comparison.rows} - empty]


def row_label(row: ComparisonRow) -> str:
    return row.label + (" ✓" if row.is_chosen else "")


def other_metric(index: int, row: ComparisonRow) -> str:
    return counted(row.other_metrics[index], row.cell.task.metrics[1 + index].digits)


def other_published(index: int, row: ComparisonRow) -> str:
    return spread(row.other_published[index])


def counted(value: Spread | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{spread(value, digits)} ({value.n})"


def spread(value: Spread | PublishedValue | None, digits: int = 2) -> str:
    if value is None:
        return NOTHING
    deviation = "" if value.std is None else f"{NO_BREAK}±{NO_BREAK}{value.std:.{digits}f}"
    return f"{value.mean:.{digits}f}{deviation}"


def difference_to_published(row: ComparisonRow) -> str:
    return NOTHING if row.difference is None else signed(row.difference)


def against_reference(row: ComparisonRow, digits: int = 2) -> str:
    """The difference with its interval, and "ahead" or "behind"."""
    if row.is_reference:
        return "reference"
    if row.paired is None:
        return NOTHING
    words = paired(row.paired, digits)
    return f"{words} {row.verdict}".rstrip()


def paired(difference: PairedDifference, digits: int = 2) -> str:
    if difference.mean is None:
        return "no common seed"
    if difference.low is None or difference.high is None:
        return f"n = {difference.n}{', all alike' if difference.n > 1 else ''}: no interval"
    ends = (difference.mean, difference.low, difference.high)
    mean, low, high = (signed(value, digits) for value in ends)
    return f"{mean} [{low},{NO_BREAK}{high}]"


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def seconds_per_epoch(row: ComparisonRow) -> str:
    return NOTHING if row.seconds_per_epoch is None else duration(row.seconds_per_epoch)


def target(comparison: Comparison) -> str:
    if comparison.target is None:
        return ""
    return f"to {comparison.target:g} {comparison.metric.unit}".rstrip()


def time_to_target(row: ComparisonRow) -> str:
    time = row.time_to_target
    if time is None:
        return NOTHING
    if time.epochs is None:
        return "not reached"
    seconds = "" if time.seconds is None else f", {duration(time.seconds)}"
    part = "" if time.reached == time.n else f" ({time.reached} of {time.n})"
    return f"{time.epochs:g} {row.cell.config.unit}{'s' * (time.epochs != 1)}{seconds}{part}"


def duration(seconds: float) -> str:
    size, unit = (1, "s") if seconds < 100 else (60, "min") if seconds < 6000 else (3600, "h")
    value = seconds / size
    return f"{value:.2g} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


# --- the summary ---------------------------------------------------------------------------------


def summary(comparison: Comparison) -> str:
    """The verdict, and where the reference ends."""
    return " ".join(filter(None, (headline(comparison), opening(comparison))))


def opening(comparison: Comparison) -> str:
    """Where the reference ends: "sgdf ends at 91.0 ± 0.1 % test accuracy (mean of 3 runs)."."""
    reference = next((row for row in comparison.rows if row.is_reference), None)
    if reference is None or reference.final is None:
        return ""
    runs = f" (mean of {reference.final.n} runs)" if reference.final.n > 1 else ""
    return f"{reference.label} ends at {measured(comparison.result, reference.final)}{runs}."


def measured(metric: Metric, value: Spread) -> str:
    """A mean with the name of its metric: "91.0 ± 0.1 % test accuracy", "FID 80.0 ± 1.0"."""
    number = spread(value, metric.digits)
    return f"{number} {metric.unit} {metric.words}" if metric.unit else f"{metric.words} {number}"


# --- the notes -----------------------------------------------------------------------------------


def notes(comparison: Comparison) -> list[str]:
    """What a reader has to know to understand the numbers."""
    rows, metric = comparison.rows, comparison.metric
    in_unit = f" in {'percent' if metric.unit == '%' else metric.unit}" if metric.unit else ""
    kind = in_unit + ", lower is better" * metric.lower_is_better
    sentences = [
        f"{metric.title}{kind}, best over the {comparison.unit}s and after the last: mean ± sample "
        "standard deviation (number of finished runs)."
    ]
    if any(row.published for row in rows):
        sentences.append(
            "Published: the paper's value, of the best epoch; its ± divides by n, not by n − 1. "
            "It is shown only beside runs with the published settings, epochs and data."
        )
    if any(row.paired for row in rows):
        sentences.append(
            "Intervals: 95 %, Student's t, over the differences in final "
            f"{comparison.result.words} between runs of the same seed. Ahead and behind: {RULE} "
            "over all comparisons with the reference."
        )
    if any(row.validation for row in rows):
        chosen = "; ✓ marks the setting of an optimizer that was chosen by it"
        sentences.append(
            "Validation: the same metric after the last epoch on held-out training images"
            f"{chosen * any(row.is_chosen for row in rows)}."
        )
    if any(row.seconds_per_epoch for row in rows):
        sentences.append(times_note(comparison))
    return sentences


def times_note(comparison: Comparison) -> str:
    machines = {machine(run) for cell in comparison.cells for run in cell.records} - {""}
    several = f" They come from {len(machines)} kinds of machine." if len(machines) > 1 else ""
    return (
        "Times are medians of wall time; the time to a target is over the runs that reached it. "
        f"Runs that shared a device slowed each other down.{several}"
    )


def machine(record: RunRecord) -> str:
    values = record.environment.get("machine")
    return str(values.get("device", "")) if isinstance(values, dict) else ""

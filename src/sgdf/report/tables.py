"""Results as rows of plain values, and the two ways to show them: a terminal's and a page's."""

import html
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import scipy.stats  # type: ignore[import-untyped]
from rich import box
from rich.cells import cell_len
from rich.console import Group as RichGroup
from rich.table import Table as RichTable
from rich.text import Text

from sgdf.lab import paper, tasks
from sgdf.lab.paper import Value
from sgdf.lab.runs.config import Config
from sgdf.lab.runs.published import published_value
from sgdf.lab.tasks import Metric
from sgdf.report.records import (
    NO_BREAK,
    Cell,
    Group,
    Record,
    groups,
    protocol_words,
    visible,
)

CONFIDENCE = 0.95
NONE = "–"


@dataclass(frozen=True)
class Spread:
    """A mean with the sample standard deviation, which one value does not have."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Paired:
    """Mean of the differences between runs of the same seed, with its 95 % t interval."""

    n: int
    mean: float = math.nan
    half_width: float | None = None  # there is none of one pair, or of pairs that differ alike

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0)


@dataclass(frozen=True)
class Arrival:
    """Medians over the runs that reached the target, and how many of them did."""

    reached: int
    n: int
    epochs: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Row:
    """One cell; the numbers are of its finished runs."""

    label: str
    optimizer: str
    best: Spread | None
    final: Spread | None
    validation: Spread | None
    others: tuple[Spread | None, ...]  # further metrics of the task, after the last epoch
    published: Value | None
    difference: float | None  # best - published
    paired: Paired | None  # final, against the reference
    seconds_per_epoch: float | None
    arrival: Arrival | None
    runs: str  # those that are not finished
    is_reference: bool = False
    is_chosen: bool = False  # of this optimizer's cells, by validation


@dataclass(frozen=True)
class Comparison:
    """The table of one task and model."""

    title: str
    protocol: str
    metrics: tuple[Metric, ...]  # of the task; it is judged by the first
    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]  # beside the rows
    reference: str | None
    target: float | None
    notes: tuple[str, ...]

    @property
    def metric(self) -> Metric:
        return self.metrics[0]

    @property
    def set_aside(self) -> set[str]:
        """The labels of cells that lost to another of their optimizer's, by validation."""
        decided = {row.optimizer for row in self.rows if row.is_chosen}
        return {row.label for row in self.rows if row.optimizer in decided and not row.is_chosen}


# --- numbers -------------------------------------------------------------------------------------


def build(
    records: Iterable[Record], planned: Iterable[Config] = (), target: float | None = None
) -> list[Comparison]:
    """A table for each task and model; `planned` runs that have no folder are missing."""
    return [compare(group, target) for group in groups(records, planned)]


def compare(cells: Group, target: float | None = None) -> Comparison:
    chosen = chosen_cells(cells)
    reference = reference_cell(cells, chosen)
    if target is None:
        decided = {cell.optimizer for cell in chosen}
        target = common_target([c for c in cells if c in chosen or c.optimizer not in decided])
    rows = tuple(row_of(cell, reference, target, cell in chosen) for cell in cells)
    config = cells[0].config
    return Comparison(
        title=title_of(config),
        protocol=common_protocol(cells),
        metrics=tasks.find(config.task).metrics,
        rows=rows,
        cells=tuple(cells),
        reference=reference.label if reference else None,
        target=target,
        notes=tuple(notes(rows, cells)),
    )


def title_of(config: Config) -> str:
    model, task = config.model, config.task.removeprefix("finetune-")
    words = " on ".join(paper.TITLES.get(name, visible(name)) for name in (model, task))
    return words if task == config.task else f"Fine-tuning {words}"


def row_of(cell: Cell, reference: Cell | None, target: float | None, is_chosen: bool) -> Row:
    done = list(cell.finished.values())
    best = spread([record.best for record in done])
    value = published_value(cell.config)
    times = [seconds for record in cell.records for seconds in record.seconds.values()]
    return Row(
        label=cell.label,
        optimizer=cell.optimizer,
        best=best,
        final=spread([record.final for record in done]),
        validation=validation_of(cell),
        others=tuple(
            spread([x for record in done if (x := record.final_of(metric)) is not None])
            for metric in tasks.find(cell.config.task).metrics[1:]
        ),
        published=value,
        difference=best.mean - value.mean if best and value else None,
        paired=paired(cell, reference) if reference and done and cell is not reference else None,
        # Of two epochs the first one compiles.
        seconds_per_epoch=statistics.median_low(times) if times else None,
        arrival=arrival(done, target) if done and target is not None else None,
        runs=unfinished_words(cell),
        is_reference=cell is reference,
        is_chosen=is_chosen,
    )


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.mean(values), std, len(values))


def paired(cell: Cell, reference: Cell) -> Paired:
    """The final number against the reference's, over the seeds that both have finished."""
    seeds = cell.finished.keys() & reference.finished.keys()
    return paired_interval(
        [cell.finished[seed].final - reference.finished[seed].final for seed in seeds]
    )


def paired_interval(differences: Sequence[float]) -> Paired:
    n = len(differences)
    if n == 0:
        return Paired(0)
    mean = statistics.mean(differences)
    # A few hundred test images make equal differences likely, and an interval of no width untrue.
    if all(math.isclose(difference, mean, abs_tol=1e-9) for difference in differences):
        return Paired(n, mean)
    quantile = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return Paired(n, mean, quantile * statistics.stdev(differences) / math.sqrt(n))


def arrival(done: Sequence[Record], target: float) -> Arrival:
    arrived = [(record, epoch) for record in done if (epoch := record.epochs_to(target))]
    if not arrived:
        return Arrival(0, len(done))
    times = [seconds for record, epoch in arrived if (seconds := record.seconds_to(epoch))]
    return Arrival(
        reached=len(arrived),
        n=len(done),
        epochs=statistics.median(epoch for _, epoch in arrived),
        seconds=statistics.median(times) if len(times) == len(arrived) else None,
    )


def common_target(cells: Sequence[Cell]) -> float | None:
    """The worst mean of the final numbers, with room up to a half: these cells come to it."""
    finals = [spread([record.final for record in cell.finished.values()]) for cell in cells]
    means = [final.mean for final in finals if final]
    if not means:
        return None
    lower = tasks.find(cells[0].config.task).metric.lower_is_better
    return math.ceil(2 * max(means)) / 2 if lower else math.floor(2 * min(means)) / 2


# --- what is compared with what -----------------------------------------------------------------


def chosen_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Of each optimizer with several cells, the one with the best validation accuracy.

    A cell that lost runs comes after those that lost fewer: its mean is one of survivors. Where an
    optimizer's finished cells were not all validated there is no choice.
    """
    chosen = []
    for optimizer in dict.fromkeys(cell.optimizer for cell in cells):
        rivals = [cell for cell in cells if cell.optimizer == optimizer and cell.finished]
        if len(rivals) > 1 and all(map(validation_of, rivals)):
            chosen.append(max(rivals, key=merit))
    return chosen


def merit(cell: Cell) -> tuple[int, float]:
    lost = sum(record.status in ("diverged", "failed") for record in cell.records)
    score = validation_of(cell)
    return -lost, score.mean if score else -math.inf


def validation_of(cell: Cell) -> Spread | None:
    values = [record.validation for record in cell.finished.values()]
    return spread([value for value in values if value is not None])


def reference_cell(cells: Sequence[Cell], chosen: Sequence[Cell]) -> Cell | None:
    """SGDF if it is there, as chosen, or as published, or else any, with the most seeds."""
    able = sorted((cell for cell in cells if cell.finished), key=lambda cell: -len(cell.finished))
    able = [cell for cell in able if cell.optimizer == "sgdf"] or able
    for wanted in (lambda cell: cell in chosen, lambda cell: published_value(cell.config), bool):
        if found := next(filter(wanted, able), None):
            return found
    return None


# --- words ---------------------------------------------------------------------------------------


def unfinished_words(cell: Cell) -> str:
    """The runs that did not finish, and why: "2 diverged in epoch 3, 7"."""
    words = []
    diverged = [str(len(r.metrics)) for r in cell.records if r.status == "diverged"]
    if diverged:
        words.append(f"{len(diverged)} diverged in epoch {', '.join(diverged)}")
    failed = sum(record.status == "failed" for record in cell.records)
    if failed:
        words.append(f"{failed} failed")
    on_the_way = [str(len(r.metrics)) for r in cell.records if r.status == "unfinished"]
    if on_the_way:
        epochs = f"{', '.join(on_the_way)} of {cell.config.epochs}"
        words.append(f"{len(on_the_way)} unfinished at epoch {epochs}")
    if cell.missing:
        seeds = f"seed{'s' * (len(cell.missing) > 1)} {', '.join(map(str, cell.missing))}"
        words.append(f"{len(cell.missing)} missing ({seeds})" if cell.records else "missing")
    return "; ".join(words)


def common_protocol(cells: Sequence[Cell]) -> str:
    """What all cells share."""
    first, *others = (protocol_words(cell.config) for cell in cells)
    common = {name: words for name, words in first.items() if words and name != "norms"}
    return ", ".join(w for name, w in common.items() if all(o.get(name) == w for o in others))


def notes(rows: Sequence[Row], cells: Sequence[Cell]) -> list[str]:
    """What a reader has to know to read the numbers right."""
    metric = tasks.find(cells[0].config.task).metric
    kind = " in percent" * (metric.unit == "%") + ", lower is better" * metric.lower_is_better
    found = [
        f"{metric.title}{kind}, best over the epochs and after the last: mean ± sample "
        "standard deviation (number of finished runs)."
    ]
    if any(row.published for row in rows):
        found.append(
            "Published: the paper's, which reports the best epoch; its ± divides by n and not by "
            "n − 1. It stands only beside cells with the published settings, epochs and data."
        )
    if any(row.paired for row in rows):
        found.append(
            f"Intervals: 95 %, Student's t, over the differences in final {metric.words} "
            "between runs of the same seed; each for itself, not corrected for their number."
        )
    if any(row.validation for row in rows):
        chosen = any(row.is_chosen for row in rows)
        found.append(
            "Validation: the same after the last epoch on training images held out"
            + ("; among the settings of an optimizer the choice (✓) was by it." if chosen else ".")
        )
    machines = {machine_of(record) for cell in cells for record in cell.records} - {""}
    if any(row.seconds_per_epoch for row in rows):
        found.append(
            "Times are medians of wall time, those to a target over the runs that reached it; "
            "runs that shared a device slowed each other down."
            + (f" They are of {len(machines)} kinds of machine." if len(machines) > 1 else "")
        )
    return found


def machine_of(record: Record) -> str:
    machine = record.environment.get("machine")
    return str(machine.get("device", "")) if isinstance(machine, dict) else ""


def summary(comparison: Comparison) -> str:
    """The table in a sentence or two; a difference is said only with its interval."""
    rows = comparison.rows
    reference = next((row for row in rows if row.is_reference), None)
    if reference is None or reference.final is None:
        return "No run has finished yet."
    opening = (
        f"{reference.label} ends at {measured(comparison.metric, reference.final)}"
        f"{', the mean of ' + str(reference.final.n) + ' runs' if reference.final.n > 1 else ''}."
    )
    rivals = [
        row
        for row in rows
        if row.paired and row.paired.half_width is not None
        and row.label not in comparison.set_aside
    ]  # fmt: skip
    others = len(rows) - 1
    if not others:
        return opening
    if not rivals:
        return f"{opening} No other has an interval, so no difference is stated."
    lower = comparison.metric.lower_is_better
    nearest = (min if lower else max)(rivals, key=lambda row: row.paired.mean if row.paired else 0)
    assert nearest.paired is not None
    points = " points" * (comparison.metric.unit == "%")
    said = f"{nearest.label} differs from it by {paired_words(nearest.paired)}{points}"
    said += " (95 % interval)"
    if len(rivals) == 1:
        return f"{opening} {said}, {verdict(nearest.paired)}."
    above = sum(row.paired.low > 0 for row in rivals if row.paired)
    below = sum(row.paired.high < 0 for row in rivals if row.paired)
    extreme = "lowest" if lower else "highest"
    return (
        f"{opening} Of {len(rivals)} others, the interval of the difference lies above zero for "
        f"{above or 'none'}, below for {below or 'none'}, and includes it for "
        f"{len(rivals) - above - below or 'none'}. The {extreme}: {said}, "
        f"{verdict(nearest.paired)}."
    )


def verdict(difference: Paired) -> str:
    if difference.low > 0:
        return "which lies above zero"
    return "which lies below zero" if difference.high < 0 else "which includes zero"


def measured(metric: Metric, value: Spread) -> str:
    """A mean with what it is one of: "91.0 ± 0.1 % test accuracy", "FID 80.0 ± 1.0"."""
    number = spread_words(value)
    return f"{number} {metric.unit} {metric.words}" if metric.unit else f"{metric.words} {number}"


def spread_words(value: Spread | Value | None) -> str:
    if value is None:
        return NONE
    deviation = "" if value.std is None else f"{NO_BREAK}±{NO_BREAK}{value.std:.2f}"
    return f"{value.mean:.2f}{deviation}"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def counted(value: Spread | None) -> str:
    return NONE if value is None else f"{spread_words(value)} ({value.n})"


def paired_words(difference: Paired) -> str:
    if difference.n == 0:
        return "no common seed"
    if difference.half_width is None:
        return f"n = {difference.n}{', all alike' if difference.n > 1 else ''}: no interval"
    mean, low, high = map(signed, (difference.mean, difference.low, difference.high))
    return f"{mean} [{low},{NO_BREAK}{high}]"


def against_reference(row: Row) -> str:
    if row.is_reference:
        return "reference"
    return NONE if row.paired is None else paired_words(row.paired)


def difference_words(row: Row) -> str:
    return NONE if row.difference is None else signed(row.difference)


def seconds_words(row: Row) -> str:
    return NONE if row.seconds_per_epoch is None else duration(row.seconds_per_epoch)


def arrival_words(row: Row) -> str:
    way = row.arrival
    if way is None:
        return NONE
    if way.epochs is None:
        return "not reached"
    took = "" if way.seconds is None else f", {duration(way.seconds)}"
    part = "" if way.reached == way.n else f" ({way.reached} of {way.n})"
    return f"{way.epochs:g} epoch{'s' * (way.epochs != 1)}{took}{part}"


def duration(seconds: float) -> str:
    size, unit = (1, "s") if seconds < 100 else (60, "min") if seconds < 6000 else (3600, "h")
    value = seconds / size
    return f"{value:.2g} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


# --- the two ways to show them -------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    title: str
    text: Callable[[Row], str]


def columns(comparison: Comparison) -> list[Column]:
    """The numbers beside a row's label: those that have something to say."""
    possible = [
        Column("best", lambda row: counted(row.best)),
        Column("final", lambda row: counted(row.final)),
        *(
            Column(f"final {metric.words}", partial(other, i))
            for i, metric in enumerate(comparison.metrics[1:])
        ),
        Column("validation", lambda row: counted(row.validation)),
        Column("published best", lambda row: spread_words(row.published)),
        Column("best − published", difference_words),
        Column(f"final, against {comparison.reference}: 95 % interval", against_reference),
        Column("per epoch", seconds_words),
        Column(target_words(comparison), arrival_words),
    ]
    silent = {NONE, "reference"}
    return [c for c in possible if {c.text(row) for row in comparison.rows} - silent]


def other(index: int, row: Row) -> str:
    return counted(row.others[index])


def target_words(comparison: Comparison) -> str:
    if comparison.target is None:
        return ""
    return f"to {comparison.target:g} {comparison.metric.unit}".rstrip()


def label_words(row: Row) -> str:
    return row.label + (" ✓" if row.is_chosen else "")


def as_rich(comparison: Comparison, width: int) -> RichGroup:
    """For a terminal: the columns that do not fit go into a table below."""
    rows = comparison.rows
    tables = [rich_table(rows, shown) for shown in fitting(rows, columns(comparison), width)]
    return RichGroup(
        Text(comparison.title, "bold"),
        Text(comparison.protocol),
        *(part for table in tables for part in ("", table)),
        "",
        *(Text(f"{row.label}: {row.runs}") for row in rows if row.runs),
        Text(summary(comparison)),
        *(Text(note, "dim") for note in comparison.notes),
    )


def fitting(rows: Sequence[Row], shown: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """The columns in as many parts as it takes to break no number; a title may be broken."""
    room = width - max(cell_len(label_words(row)) for row in rows)
    part: list[Column] = []
    used = 0
    for column in shown:
        wide = column_width(rows, column) + 3  # and the gap
        if part and used + wide > room:
            yield part
            part, used = [], 0
        part.append(column)
        used += wide
    if part:
        yield part


def column_width(rows: Sequence[Row], column: Column) -> int:
    return max(map(cell_len, [*column.title.split(), *(column.text(row) for row in rows)]))


def rich_table(rows: Sequence[Row], shown: Sequence[Column]) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", style="bold")
    for column in shown:
        least = column_width(rows, column)
        table.add_column(Text(column.title), justify="right", min_width=least)
    for row in rows:
        table.add_row(Text(label_words(row)), *(Text(column.text(row)) for column in shown))
    return table


def as_html(comparison: Comparison) -> str:
    """For the page; everything is escaped here."""
    shown = columns(comparison)
    head = "".join(f'<th scope="col">{html.escape(column.title)}</th>' for column in shown)
    body = "".join(html_row(row, shown) for row in comparison.rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def html_row(row: Row, shown: Sequence[Column]) -> str:
    label, runs = html.escape(label_words(row)), html.escape(row.runs)
    remark = f"<small>{runs}</small>" if runs else ""
    cells = "".join(f"<td>{html.escape(column.text(row))}</td>" for column in shown)
    return f'<tr><th scope="row">{label}{remark}</th>{cells}</tr>'

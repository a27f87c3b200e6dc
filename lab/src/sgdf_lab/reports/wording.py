"""A comparison in words: title, verdict, cells of its table, the notes below.

The rule of the verdict is in `numbers`; here it is only put into sentences.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from sgdf_lab import paper
from sgdf_lab.paper import PublishedValue
from sgdf_lab.reports.cells import RunCell
from sgdf_lab.reports.comparison import Comparison, ComparisonRow
from sgdf_lab.reports.labels import NO_BREAK, visible
from sgdf_lab.reports.numbers import (
    SEEN,
    SIGNIFICANCE,
    PairedDifference,
    Spread,
    clear_difference,
)
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.tasks import Metric

NOTHING = "–"
NAMES = 4  # more than this many are counted instead of listed
RULE = f"p < {SIGNIFICANCE:g} after Holm's correction"
NEEDS_PLAN = (
    "No verdict: settings were chosen by trials, and only the plan of the sweep says how. "
    "`sgdf evidence PLAN` has the verdict."
)
CHOOSES = (
    "No verdict: by these runs settings are chosen. The page of the last stage and `sgdf evidence` "
    "compare the chosen ones, by other seeds."
)

Named = tuple[str, ComparisonRow]


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
    unit = cell.config.unit
    diverged = [str(record.reached) for record in cell.records if record.status == "diverged"]
    if diverged:
        words.append(f"{len(diverged)} diverged in {unit} {', '.join(diverged)}")
    failed = sum(record.status == "failed" for record in cell.records)
    if failed:
        words.append(f"{failed} failed")
    unfinished = [str(record.reached) for record in cell.records if record.status == "unfinished"]
    if unfinished:
        where = f"{unit} {', '.join(unfinished)} of {cell.config.total}"
        words.append(f"{len(unfinished)} unfinished at {where}")
    if cell.missing:
        seeds = f"seed{'s' * (len(cell.missing) > 1)} {', '.join(map(str, cell.missing))}"
        words.append(f"{len(cell.missing)} missing ({seeds})" if cell.records else "missing")
    return "; ".join(words)


def status(record: RunRecord) -> str:
    if record.finished:
        return f"finished, {record.metric.shown(record.final)} {record.metric.unit}".rstrip()
    where = f"{record.config.unit} {record.reached}"
    if record.status == "diverged":
        return f"diverged in {where}"
    return f"{record.status} at {where} of {record.config.total}"


# --- the table -----------------------------------------------------------------------------------


TableRow = tuple[str, ...]  # the label, and the cells


def cells_of(
    comparison: Comparison, rows: Sequence[ComparisonRow]
) -> tuple[tuple[str, ...], tuple[TableRow, ...]]:
    """The titles of the columns, without those that would be empty for all, and these rows."""
    kept = [
        (title, text)
        for title, text in columns(comparison)
        if {text(row) for row in comparison.rows} - {NOTHING, "reference"}
    ]
    titles = tuple(title for title, _ in kept)
    return titles, tuple((row_label(row), *(text(row) for _, text in kept)) for row in rows)


def columns(comparison: Comparison) -> list[tuple[str, Callable[[ComparisonRow], str]]]:
    digits, result = comparison.metric.digits, comparison.result
    is_other = result.key != comparison.metric.key
    return [
        ("best", lambda row: counted(row.best, digits)),
        (
            f"final {result.words}" if is_other else "final",
            lambda row: counted(row.final, result.digits),
        ),
        *(
            (f"final {metric.words}", partial(other_metric, i))
            for i, metric in enumerate(comparison.metrics[1:])
        ),
        ("validation", lambda row: counted(row.validation, digits)),
        ("published best", lambda row: spread(row.published)),
        ("best − published", difference_to_published),
        *(
            (f"published {metric.words}", partial(other_published, i))
            for i, metric in enumerate(comparison.metrics[1:])
        ),
        (
            f"final, against {comparison.reference}: 95 % interval",
            lambda row: against_reference(row, result.digits),
        ),
        (f"per {comparison.unit}", seconds_per_unit),
        (target(comparison), time_to_target),
    ]


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
    return interval((difference.mean, difference.low, difference.high), digits)


def interval(values: Iterable[float], digits: int) -> str:
    """A mean and the ends of its interval.

    >>> interval((1.5, -0.25, 3.25), 2).replace(NO_BREAK, " ")
    '+1.50 [−0.25, +3.25]'
    """
    mean, low, high = (signed(value, digits) for value in values)
    return f"{mean} [{low},{NO_BREAK}{high}]"


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def seconds_per_unit(row: ComparisonRow) -> str:
    return NOTHING if row.seconds_per_unit is None else duration(row.seconds_per_unit)


def target(comparison: Comparison) -> str:
    if comparison.target is None:
        return ""
    return f"to {comparison.target:g} {comparison.metric.unit}".rstrip()


def time_to_target(row: ComparisonRow) -> str:
    time = row.time_to_target
    if time is None:
        return NOTHING
    if time.length is None:
        return "not reached"
    seconds = "" if time.seconds is None else f", {duration(time.seconds)}"
    part = "" if time.reached == time.n else f" ({time.reached} of {time.n})"
    return f"{time.length:g} {row.cell.config.unit}{'s' * (time.length != 1)}{seconds}{part}"


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
    seen = f" {SEEN.format(comparison.result.words)}" if comparison.is_seen else ""
    return f"{reference.label} ends at {measured(comparison.result, reference.final)}{runs}.{seen}"


def measured(metric: Metric, value: Spread) -> str:
    """A mean with the name of its metric: "91.0 ± 0.1 % test accuracy", "FID 80.0 ± 1.0"."""
    number = spread(value, metric.digits)
    return f"{number} {metric.unit} {metric.words}" if metric.unit else f"{metric.words} {number}"


# --- the verdict ---------------------------------------------------------------------------------


def headline(comparison: Comparison) -> str:
    """The verdict in one sentence; others name those on whom there is none, and lost seeds."""
    names = short_names(comparison)
    reference = next((row for row in comparison.rows if row.is_reference), None)
    if reference is None or reference.final is None:
        return "No run has finished yet."
    ours = names[reference.label]
    kept = [(names[row.label], row) for row in comparison.rows if row.label in names]
    others = [named for named in kept if named[1] is not reference]
    rows = [named for named in others if named[1].paired]
    if not others:
        return f"Only {ours} was run: there is nothing to compare it with."
    if not rows:
        first = f"Only {ours} has finished: there is nothing to compare it with yet."
        return " ".join([first, *lost_seeds(kept)])
    if comparison.needs_plan or comparison.is_choice:
        why = CHOOSES if comparison.is_choice else NEEDS_PLAN
        return " ".join([why, *lost_seeds(kept)])
    reasons: dict[str, list[Named]] = {}
    for named in rows:
        reasons.setdefault(why_no_verdict(named[1], comparison.result), []).append(named)
    tested = reasons.pop("", [])
    sentences = [decision(comparison.result, ours, tested)] if tested else []
    against = "" if tested or len(reasons) > 1 else f"{ours} against "
    sentences += [
        f"No verdict on {against}{listed(which)}: {reason}." for reason, which in reasons.items()
    ]
    return " ".join([*sentences, *lost_seeds(kept)])


def why_no_verdict(row: ComparisonRow, metric: Metric) -> str:
    """ "" if there is one, or if no difference was found."""
    found = row.paired
    assert found is not None
    if found.n == 0:
        return "no seed was run with both"
    if found.n == 1:
        return "one seed is not enough"
    if found.p is None:
        return "the difference is the same in all seeds, which gives no interval"
    if clear_difference(found, found.p_verdict, metric) in found.barred:
        return "runs are missing" if found.missing else "the seeds that are left are not all"
    return ""


def lost_seeds(rows: Sequence[Named]) -> list[str]:
    """How many seeds each of these has lost."""
    words = []
    for name, row in rows:
        records = row.cell.records
        lost = sum(record.status in ("diverged", "failed") for record in records)
        if lost:
            words.append(f"{name} {lost} of {len(records) + len(row.cell.missing)}")
    more = f" and {len(words) - NAMES} more" * (len(words) > NAMES)
    return [f"Seeds that diverged or failed: {', '.join(words[:NAMES])}{more}."] if words else []


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
        f"{difference(metric, only, signs=True)}, {p_words(only)} ({seeds(unclear)})."
    )


def amount(metric: Metric, rows: Sequence[Named]) -> str:
    """The size of the differences without sign: "1.10 points (95 % interval 0.50 to 1.80, ...)"."""
    direction = "lower is better, " * metric.lower_is_better
    if len(rows) > 1:
        means = sorted(abs(mean_of(row)) for _, row in rows)
        least, most = metric.shown(means[0]), metric.shown(means[-1])
        return f"{least} to {most}{unit_of(metric)} ({direction}{RULE}, {seeds(rows)})"
    ((_, only),) = rows
    words = difference(metric, only, signs=False)
    return f"{words} ({direction}{p_words(only)}, {seeds(rows)})"


def difference(metric: Metric, row: ComparisonRow, *, signs: bool) -> str:
    """The mean with its 95 % interval, the end nearer to zero first where signs are left out."""
    assert row.paired is not None
    assert row.paired.low is not None
    assert row.paired.high is not None
    low, high = sorted((row.paired.low, row.paired.high), key=None if signs else abs)
    mean, least, most = (
        signed(value, metric.digits) if signs else metric.shown(abs(value))
        for value in (mean_of(row), low, high)
    )
    return f"{mean}{unit_of(metric)}, 95 % interval {least} to {most}"


def mean_of(row: ComparisonRow) -> float:
    assert row.paired is not None
    assert row.paired.mean is not None
    return row.paired.mean


def p_words(row: ComparisonRow) -> str:
    assert row.paired is not None
    assert row.paired.p_verdict is not None
    return "p < 0.001" if row.paired.p_verdict < 0.001 else f"p {row.paired.p_verdict:.2g}"


def unit_of(metric: Metric) -> str:
    return " points" if metric.unit == "%" else f" in {metric.words}"


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
            "over all comparisons with the reference. Where settings were chosen, p is the share "
            "of pairs of equally good optimizers, tuned alike, that come out as far apart."
        )
    if any(row.validation or row.is_chosen for row in rows):
        held_out = "text" if rows[0].cell.task.kind == "language" else "training images"
        chosen = "; ✓ marks the setting of an optimizer that was chosen by it"
        chosen += ", and is compared by the seeds of later runs" * comparison.needs_plan
        sentences.append(
            f"Validation: the same metric after the last {comparison.unit} on held-out {held_out}"
            f"{chosen * any(row.is_chosen for row in rows)}."
        )
    if any(row.seconds_per_unit for row in rows):
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

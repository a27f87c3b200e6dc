"""The numbers of a comparison: spreads, paired differences, time to a target, chosen settings."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import scipy.stats  # type: ignore[import-untyped]

from sgdf_lab.paper import PublishedValue
from sgdf_lab.report.cells import RunCell, cells_by_task
from sgdf_lab.report.records import RunRecord
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.published import published_value
from sgdf_lab.tasks import Metric

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """A mean with the sample standard deviation, which a single value does not have."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """Mean of the differences between runs of the same seed, with its 95 % t interval."""

    n: int
    mean: float = math.nan
    half_width: float | None = None  # None for a single pair, or if all differences are equal

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0)


@dataclass(frozen=True)
class TimeToTarget:
    """Medians over the runs that reached the target, and how many of the n runs did."""

    reached: int
    n: int
    epochs: float | None = None  # or steps
    seconds: float | None = None


@dataclass(frozen=True)
class ComparisonRow:
    """One cell; the numbers are those of its finished runs."""

    cell: RunCell
    best: Spread | None
    final: Spread | None
    validation: Spread | None
    other_metrics: tuple[Spread | None, ...]  # of the task, after the last epoch
    published: PublishedValue | None
    other_published: tuple[PublishedValue | None, ...]  # of the other metrics
    difference: float | None  # best - published
    paired: PairedDifference | None  # final, against the reference
    seconds_per_epoch: float | None
    time_to_target: TimeToTarget | None
    is_reference: bool = False
    is_chosen: bool = False  # among this optimizer's cells, by validation

    @property
    def label(self) -> str:
        return self.cell.label

    @property
    def optimizer(self) -> str:
        return self.cell.optimizer


@dataclass(frozen=True)
class Comparison:
    """The cells of one task and model, compared with one of them."""

    rows: tuple[ComparisonRow, ...]
    reference: str | None  # a label
    target: float | None

    @property
    def cells(self) -> list[RunCell]:
        return [row.cell for row in self.rows]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.rows[0].cell.task.metrics

    @property
    def metric(self) -> Metric:
        return self.metrics[0]

    @property
    def unit(self) -> str:
        """What the length of its runs is counted in: "epoch" or "step"."""
        return self.cells[0].config.unit

    @property
    def set_aside(self) -> set[str]:
        """The labels of cells that lost, by validation, to another of the same contest."""
        decided = {row.cell.contest for row in self.rows if row.is_chosen}
        lost = [row for row in self.rows if row.cell.contest in decided and not row.is_chosen]
        return {row.label for row in lost}


def compare_runs(
    records: Iterable[RunRecord], planned: Iterable[Config] = (), target: float | None = None
) -> list[Comparison]:
    """A comparison for each task and model; `planned` runs without a folder are missing."""
    return [compare_cells(cells, target) for cells in cells_by_task(records, planned)]


def compare_cells(cells: Sequence[RunCell], target: float | None = None) -> Comparison:
    chosen = chosen_cells(cells)
    reference = reference_cell(cells, chosen)
    if target is None:
        decided = {cell.contest for cell in chosen}
        target = common_target([c for c in cells if c in chosen or c.contest not in decided])
    rows = tuple(compare_cell(cell, reference, target, cell in chosen) for cell in cells)
    return Comparison(rows, reference.label if reference else None, target)


def compare_cell(
    cell: RunCell, reference: RunCell | None, target: float | None, is_chosen: bool
) -> ComparisonRow:
    finished = list(cell.finished.values())
    best = spread([record.best for record in finished])
    value = published_value(cell.config)
    times = [seconds for record in cell.records for seconds in record.seconds.values()]
    rival = reference if finished and cell is not reference else None
    return ComparisonRow(
        cell=cell,
        best=best,
        final=spread([record.final for record in finished]),
        validation=validation_spread(cell),
        other_metrics=tuple(
            spread([x for record in finished if (x := record.final_of(metric)) is not None])
            for metric in cell.task.metrics[1:]
        ),
        published=value,
        other_published=tuple(
            published_value(cell.config, metric) for metric in cell.task.metrics[1:]
        ),
        difference=best.mean - value.mean if best and value else None,
        paired=paired_difference(cell, rival) if rival else None,
        # The lower median: of two epochs the first includes the compilation.
        seconds_per_epoch=(statistics.median_low(times) / cell.config.interval if times else None),
        time_to_target=time_to(target, finished) if finished and target is not None else None,
        is_reference=cell is reference,
        is_chosen=is_chosen,
    )


# --- estimates -----------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.mean(values), std, len(values))


def paired_difference(cell: RunCell, reference: RunCell) -> PairedDifference:
    """Final values minus the reference's, over the seeds that both have finished."""
    seeds = cell.finished.keys() & reference.finished.keys()
    return paired_interval(
        [cell.finished[seed].final - reference.finished[seed].final for seed in seeds]
    )


def paired_interval(differences: Sequence[float]) -> PairedDifference:
    n = len(differences)
    if n == 0:
        return PairedDifference(0)
    mean = statistics.mean(differences)
    # With a few hundred test images differences are often equal: that does not mean no variance.
    if all(math.isclose(difference, mean, abs_tol=1e-9) for difference in differences):
        return PairedDifference(n, mean)
    quantile = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return PairedDifference(n, mean, quantile * statistics.stdev(differences) / math.sqrt(n))


def time_to(target: float, finished: Sequence[RunRecord]) -> TimeToTarget:
    arrived = [(record, epoch) for record in finished if (epoch := record.epochs_to(target))]
    if not arrived:
        return TimeToTarget(0, len(finished))
    times = [seconds for record, epoch in arrived if (seconds := record.seconds_to(epoch))]
    return TimeToTarget(
        reached=len(arrived),
        n=len(finished),
        epochs=statistics.median(epoch * run.config.interval for run, epoch in arrived),
        seconds=statistics.median(times) if len(times) == len(arrived) else None,
    )


def common_target(cells: Sequence[RunCell]) -> float | None:
    """The worst mean of the final values, eased to the next half, or the metric's grain: all cells
    reach it on average."""
    finals = [spread([record.final for record in cell.finished.values()]) for cell in cells]
    means = [final.mean for final in finals if final]
    if not means:
        return None
    metric = cells[0].task.metric
    parts = round(1 / metric.grain)
    if metric.lower_is_better:
        return math.ceil(parts * max(means)) / parts
    return math.floor(parts * min(means)) / parts


# --- what is compared with what -----------------------------------------------------------------


def chosen_cells(cells: Sequence[RunCell]) -> list[RunCell]:
    """For each optimizer with several cells, the one with the best validation accuracy.

    Only cells of the same length and data are rivals: a longer run has the better validation.
    Cells that lost fewer runs come first: a mean over the survivors alone is too good. Nothing is
    chosen for an optimizer whose finished cells were not all validated.
    """
    chosen = []
    for contest in dict.fromkeys(cell.contest for cell in cells):
        rivals = [cell for cell in cells if cell.contest == contest and cell.finished]
        if len(rivals) > 1 and all(map(validation_spread, rivals)):
            chosen.append(max(rivals, key=merit))
    return chosen


def merit(cell: RunCell) -> tuple[int, float]:
    lost = sum(record.status in ("diverged", "failed") for record in cell.records)
    score = validation_spread(cell)
    if score is None:
        return -lost, -math.inf
    return -lost, -score.mean if cell.task.metric.lower_is_better else score.mean


def validation_spread(cell: RunCell) -> Spread | None:
    values = [record.validation for record in cell.finished.values()]
    return spread([value for value in values if value is not None])


def reference_cell(cells: Sequence[RunCell], chosen: Sequence[RunCell]) -> RunCell | None:
    """SGDF if it has finished, else any: the chosen, else the published, else the most seeds."""
    able = sorted((cell for cell in cells if cell.finished), key=lambda cell: -len(cell.finished))
    able = [cell for cell in able if cell.optimizer == "sgdf"] or able
    for preferred in (lambda cell: cell in chosen, lambda cell: published_value(cell.config), bool):
        if cell := next(filter(preferred, able), None):
            return cell
    return None

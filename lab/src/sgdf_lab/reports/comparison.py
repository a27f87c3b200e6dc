"""The numbers of a comparison: spreads, paired differences, time to a target, chosen settings."""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sgdf_lab.paper import PublishedValue
from sgdf_lab.reports.cells import RunCell, cells_by_task
from sgdf_lab.reports.choice import Choice, choice_between, choices_of, known
from sgdf_lab.reports.numbers import (
    PairedDifference,
    Spread,
    compare,
    outcome,
    result_metric,
    spread,
    with_verdicts,
)
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.runs.results import published_value
from sgdf_lab.support.numbers import is_number
from sgdf_lab.sweeps.contestants import LEAST_TRIED, contestants_in, edge_of, ranking
from sgdf_lab.sweeps.plan import Grid
from sgdf_lab.tasks import Metric

#: How settings were chosen, by `Config.cell_key`; None if only the plan of a sweep says.
Choices = Mapping[Hashable, Choice | None]

#: Whichever of these was run is the reference, the first one first; else SGDF, else any.
REFERENCES = ("sgd", "sgd-nesterov", "adamw", "nadamw")


@dataclass(frozen=True)
class TimeToTarget:
    """Medians over the runs that reached the target, and how many of the n runs did."""

    reached: int
    n: int
    length: float | None = None  # in steps or epochs
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
    seconds_per_unit: float | None
    time_to_target: TimeToTarget | None
    paired: PairedDifference | None = None  # final, against the reference
    is_reference: bool = False
    is_chosen: bool = False  # among this optimizer's cells, by validation

    @property
    def label(self) -> str:
        return self.cell.label

    @property
    def optimizer(self) -> str:
        return self.cell.optimizer

    @property
    def verdict(self) -> str:
        return self.paired.verdict if self.paired else ""


@dataclass(frozen=True)
class Comparison:
    """The cells of one task and model, compared with one of them."""

    rows: tuple[ComparisonRow, ...]
    reference: str | None  # a label
    target: float | None
    result: Metric  # what is compared: the metric that no choice of settings has seen
    needs_plan: bool = False  # settings were chosen by trials: without the plan no verdict
    is_choice: bool = False  # by these runs settings are chosen: no verdict
    is_seen: bool = False  # the result is what the settings were chosen by

    @property
    def cells(self) -> list[RunCell]:
        return [row.cell for row in self.rows]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.rows[0].cell.task.metrics

    @property
    def metric(self) -> Metric:
        """What is measured while training: of curves, best values and targets."""
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
    records: Iterable[RunRecord],
    planned: Iterable[Config] = (),
    target: float | None = None,
    *,
    choices: Choices | None = None,
    is_choice: bool = False,
) -> list[Comparison]:
    """A comparison for each task and model.

    Args:
        records: the runs.
        planned: runs without a folder are missing.
        target: what the time to is measured; default: a value that all reach.
        choices: how the settings were chosen by other runs, by cell; then none is set aside.
        is_choice: by these runs a sweep chooses its settings: there is no verdict.
    """
    by_task = cells_by_task(records, planned)
    return [compare_cells(cells, target, choices, is_choice) for cells in by_task]


def compare_stage(stage: Grid, records: Iterable[RunRecord], out: Path) -> list[Comparison]:
    """The comparisons of a stage of a sweep, whose settings may be chosen by the stages before."""
    tuned = stage.chosen_from
    choices = choices_of(contestants_in(tuned, out)) if tuned else None
    return compare_runs(records, stage.configs, choices=choices, is_choice=stage.is_choice)


def compare_cells(
    cells: Sequence[RunCell],
    target: float | None = None,
    choices: Choices | None = None,
    is_choice: bool = False,
) -> Comparison:
    chosen: list[RunCell] = []
    if choices is None:
        cells, choices = chosen_among(cells)
        chosen = [cell for cell in cells if cell.config.cell_key in choices]
    reference = reference_cell(cells, chosen)
    if target is None:
        decided = {cell.contest for cell in chosen}
        target = common_target([c for c in cells if c in chosen or c.contest not in decided])
    finished = [record for cell in cells for record in cell.finished.values()]
    result = result_metric(cells[0].task, finished)
    outcomes = {
        cell.label: outcome(cell.runs, result, choices.get(cell.config.cell_key)) for cell in cells
    }
    rows = []
    for cell in cells:
        row = describe(cell, target, result)
        if reference and cell is not reference and cell.finished:
            row = replace(row, paired=compare(outcomes[cell.label], outcomes[reference.label]))
        rows.append(replace(row, is_reference=cell is reference, is_chosen=cell in chosen))
    label, needs_plan = reference.label if reference else None, None in choices.values()
    is_seen = bool(choices) and result.key == cells[0].task.validation_key
    comparison = Comparison(tuple(rows), label, target, result, needs_plan, is_choice, is_seen)
    # Settings that were not chosen are not compared: they would cost the others their verdict.
    judged = [row for row in rows if row.paired and row.label not in comparison.set_aside]
    found = [row.paired for row in judged if row.paired]
    if not (needs_plan or is_choice):
        found = with_verdicts(found, result)
    verdicts = {row.label: paired for row, paired in zip(judged, found, strict=True)}
    rows = [replace(row, paired=verdicts.get(row.label, row.paired)) for row in rows]
    return replace(comparison, rows=tuple(rows))


def describe(cell: RunCell, target: float | None, result: Metric) -> ComparisonRow:
    """A cell by itself."""
    finished = list(cell.finished.values())
    best = spread([record.best for record in finished])
    value = published_value(cell.config)
    times = [seconds for record in cell.records for seconds in record.seconds.values()]
    return ComparisonRow(
        cell=cell,
        best=best,
        final=spread([x for record in finished if (x := record.final_of(result)) is not None]),
        validation=validation_spread(cell) if cell.task.validation_key != result.key else None,
        other_metrics=tuple(
            spread([x for record in finished if (x := record.final_of(metric)) is not None])
            for metric in cell.task.metrics[1:]
        ),
        published=value,
        other_published=tuple(
            published_value(cell.config, metric) for metric in cell.task.metrics[1:]
        ),
        difference=best.mean - value.mean if best and value else None,
        # The lower median: of two epochs the first includes the compilation.
        seconds_per_unit=(statistics.median_low(times) / cell.config.interval if times else None),
        time_to_target=time_to(target, finished) if finished and target is not None else None,
    )


# --- estimates -----------------------------------------------------------------------------------


def time_to(target: float, finished: Sequence[RunRecord]) -> TimeToTarget:
    arrived = [(record, place) for record in finished if (place := record.first_at(target))]
    if not arrived:
        return TimeToTarget(0, len(finished))
    times = [seconds for record, place in arrived if (seconds := record.seconds_to(place))]
    return TimeToTarget(
        reached=len(arrived),
        n=len(finished),
        length=statistics.median(place for _, place in arrived),
        seconds=statistics.median(times) if len(times) == len(arrived) else None,
    )


def common_target(cells: Sequence[RunCell]) -> float | None:
    """The worst mean final value, relaxed to the next multiple of the metric's grain: all cells
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


def chosen_among(cells: Sequence[RunCell]) -> tuple[list[RunCell], Choices]:
    """What was chosen by validation, for each optimizer with several cells.

    Only cells of the same length and data are compared, since a longer run has the better
    validation. Nothing is chosen for an optimizer whose finished cells were not all validated.

    If each has cells with more seeds than the others, or two have, it is a sweep with trials that
    has ended or not: these were chosen before, and are compared by the seeds that had no part in
    it. How, only the plan says.

    Returns:
        All cells, without the runs that are not compared, and the choices.
    """
    contests = [
        own
        for contest in dict.fromkeys(cell.contest for cell in cells)
        for own in [[cell for cell in cells if cell.contest == contest]]
        if sum(bool(cell.finished) for cell in own) > 1
        and all(validation_spread(cell) for cell in own if cell.finished)
    ]
    chosen_before = [with_new_seeds(own) for own in contests]
    if contests and (all(chosen_before) or sum(map(bool, chosen_before)) > 1):
        known = {
            cell.label: cell
            for own, found in zip(contests, chosen_before, strict=True)
            for cell in found or [best_validated(own)]
        }
        choices = dict.fromkeys((cell.config.cell_key for cell in known.values()), None)
        return [known.get(cell.label, cell) for cell in cells], choices
    best = [(own, best_validated(own)) for own in contests]
    return [*cells], {
        cell.config.cell_key: choice_between(
            {c.label: validation_values(c) for c in own}, cell.label, cell.task.metric
        )
        for own, cell in best
    }


def with_new_seeds(cells: Sequence[RunCell]) -> list[RunCell]:
    """Those with the most seeds, without the seeds of the others; none if no seed is left."""
    able = [cell for cell in cells if cell.finished]
    most = max(len(cell.seeds) for cell in able)
    tried = {seed for cell in cells if len(cell.seeds) < most for seed in cell.seeds}
    found = [cell.without(tried) for cell in able if len(cell.seeds) == most]
    return found if tried and all(cell.seeds for cell in found) else []


def best_validated(cells: Sequence[RunCell]) -> RunCell:
    """The best of those with the most finished seeds."""
    most = max(len(cell.finished) for cell in cells)
    able = [cell for cell in cells if len(cell.finished) == most]
    return able[ranking([*map(validation_values, able)], able[0].task.metric)[0]]


def validation_values(cell: RunCell) -> list[float | None]:
    """One for each run that has ended; None of those that diverged or failed."""
    ended = [record for record in cell.records if record.status != "unfinished"]
    return [record.validation if record.finished else None for record in ended]


def validation_spread(cell: RunCell) -> Spread | None:
    return spread(known(validation_values(cell)))


def reference_cell(cells: Sequence[RunCell], chosen: Sequence[RunCell]) -> RunCell | None:
    """A baseline that has finished, else SGDF, else any.

    Among several cells of one optimizer: the chosen, else the published, else the most seeds.
    """
    able = sorted((cell for cell in cells if cell.finished), key=lambda cell: -len(cell.finished))
    for optimizer in (*REFERENCES, "sgdf"):
        if own := [cell for cell in able if cell.optimizer == optimizer]:
            able = own
            break
    for preferred in (lambda cell: cell in chosen, lambda cell: published_value(cell.config), bool):
        if cell := next(filter(preferred, able), None):
            return cell
    return None


# --- edges ---------------------------------------------------------------------------------------


def edge_warnings(comparison: Comparison) -> list[str]:
    """A sentence for each setting whose best value is the smallest or the largest that was tried.

    Values whose runs diverged or are still missing count as tried.
    """
    sentences = []
    for optimizer in dict.fromkeys(row.optimizer for row in comparison.rows):
        rows = [row for row in comparison.rows if row.optimizer == optimizer]
        best = best_row(comparison, rows)
        if best is None:
            continue
        for name, value in best.cell.config.settings.items():
            if not is_number(value):
                continue
            tried = tried_values(best, rows, name)
            # Without a choice by validation, two values are a comparison and three are a grid.
            edge = edge_of(value, tried, least=2 if best.is_chosen else LEAST_TRIED)
            if edge == "largest" or (edge and value > 0):
                sentences.append(
                    f"The best {name} of {optimizer}, {value:g}, is the {edge} of the {len(tried)} "
                    f"that were tried: a {edge[:-2]}r one may be better."
                )
    return sentences


def best_row(comparison: Comparison, rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """The chosen one; where nothing was chosen, the one with the best final value."""
    for row in rows:
        if row.is_chosen:
            return row
    finals = {row.final.mean: row for row in rows if row.final}
    return finals[comparison.result.best(finals)] if finals else None


def tried_values(best: ComparisonRow, rows: Sequence[ComparisonRow], name: str) -> list[float]:
    """The values of a setting in the cells that differ from the best in nothing else."""
    own = {**best.cell.config.settings, name: None}
    alike = (
        row.cell.config.settings
        for row in rows
        if row.cell.protocol == best.cell.protocol
        and {**row.cell.config.settings, name: None} == own
    )
    return sorted({settings[name] for settings in alike if is_number(settings.get(name))})

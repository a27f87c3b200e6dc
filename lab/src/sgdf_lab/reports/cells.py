"""Runs grouped into cells: a cell holds the runs that differ only in their seed."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sgdf_lab.reports.labels import protocol_words, settings_words, visible
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.support.numbers import is_number
from sgdf_lab.sweeps.contestants import PlannedRun
from sgdf_lab.tasks import Task


@dataclass(frozen=True)
class RunCell:
    """Runs that differ only in their seed: those that there are, then those that are missing."""

    runs: tuple[PlannedRun, ...]
    label: str = ""
    on_cpu: bool = False  # all of its runs; without any, all runs that it is compared with

    @property
    def config(self) -> Config:
        return self.runs[0].config

    @cached_property
    def records(self) -> tuple[RunRecord, ...]:
        return tuple(run.record for run in self.runs if run.record)

    @property
    def missing(self) -> tuple[int, ...]:
        """The seeds of planned runs that do not exist."""
        return tuple(sorted(run.config.seed for run in self.runs if run.record is None))

    @cached_property
    def finished(self) -> dict[int, RunRecord]:
        """The finished runs by seed."""
        return {record.config.seed: record for record in self.records if record.finished}

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(run.config.seed for run in self.runs)

    def without(self, seeds: Collection[int]) -> "RunCell":
        """The cell without the runs of these seeds."""
        return replace(self, runs=tuple(r for r in self.runs if r.config.seed not in seeds))

    @property
    def optimizer(self) -> str:
        return visible(self.config.optimizer)

    @property
    def protocol(self) -> dict[str, str]:
        return protocol_words(self.config, on_cpu=self.on_cpu)

    @property
    def contest(self) -> tuple[str, ...]:
        """Cells with the same one may be chosen from: one optimizer, as long, on the same data."""
        config = self.config
        text = (str(config.options.get(name, "")) for name in ("corpus", "fingerprint"))
        return self.optimizer, config.length, config.data, *text

    @property
    def task(self) -> Task:
        return self.config.task_definition

    @property
    def learning_rate(self) -> float | None:
        lr = self.config.settings.get("lr")
        return float(lr) if lr is not None and is_number(lr) else None


def cells_by_task(
    records: Iterable[RunRecord], planned: Iterable[Config] = ()
) -> list[list[RunCell]]:
    """The cells of each task and model, SGDF first, then by name and learning rate."""
    runs = [PlannedRun(r.config, r) for r in sorted(records, key=lambda r: r.config.seed)]
    names = {run.config.name for run in runs}
    absent = {config.name: config for config in planned if config.name not in names}
    found: dict[Hashable, list[PlannedRun]] = {}
    for run in (*runs, *(PlannedRun(config, None) for config in absent.values())):
        found.setdefault(run.config.cell_key, []).append(run)  # labels name settings in this order
    groups: dict[tuple[str, str], list[RunCell]] = {}
    for cell in (RunCell(tuple(own)) for own in found.values()):
        groups.setdefault((cell.task.name, cell.config.model), []).append(cell)
    return [labelled(groups[place]) for place in sorted(groups)]


def earlier_starts(record: RunRecord) -> list[dict[str, Any]]:
    """What is known of the starts before the last one, of a run that was interrupted."""
    found = record.environment.get("earlier")
    return [start for start in found if isinstance(start, dict)] if isinstance(found, list) else []


def placed(cells: Sequence[RunCell]) -> list[RunCell]:
    """Note which cells were trained on a CPU."""
    everything = [record for cell in cells for record in cell.records]

    def is_on_cpu(records: Sequence[RunRecord]) -> bool:
        return bool(records) and all(record.on_cpu for record in records)

    return [replace(cell, on_cpu=is_on_cpu(cell.records or everything)) for cell in cells]


def labelled(cells: Sequence[RunCell]) -> list[RunCell]:
    """Sort the cells and label each with the settings in which it differs from the others."""
    named = with_labels(placed(cells))
    if len({cell.label for cell in named}) < len(named):  # fp32 on a GPU, or asked for, and tf32
        named = with_labels(cells)
    counts = Counter(cell.label for cell in named)
    for i, cell in enumerate(named):
        if counts[cell.label] > 1:  # they differ in something without words
            digest = cell.config.name.rpartition("-")[2]
            named[i] = replace(cell, label=f"{cell.label}, {digest}")
    return sorted(
        named, key=lambda c: (c.optimizer != "sgdf", c.optimizer, c.learning_rate or 0, c.label)
    )


def with_labels(cells: Sequence[RunCell]) -> list[RunCell]:
    protocols = [cell.protocol for cell in cells]
    names = dict.fromkeys(name for words in protocols for name in words)
    differing = [name for name in names if len({words.get(name) for words in protocols}) > 1]
    named = []
    for cell, words in zip(cells, protocols, strict=True):
        rivals = [c.config for c in cells if c.config.optimizer == cell.config.optimizer]
        parts = [cell.config.optimizer, *settings_words(cell.config, rivals)]
        parts += [words[name] for name in differing if words.get(name)]
        named.append(replace(cell, label=visible(", ".join(parts))))
    return named

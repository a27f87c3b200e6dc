"""Runs read back from disk, and sorted into cells: runs that differ in their seed alone."""

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sgdf.lab import tasks
from sgdf.lab.runs import disk
from sgdf.lab.runs.config import Config, frozen
from sgdf.lab.tasks import Metric
from sgdf.support.errors import UserError

NO_BREAK = "\N{NO-BREAK SPACE}"
STATUSES = ("finished", "diverged", "failed")  # without result.json a run is unfinished


@dataclass(frozen=True)
class Record:
    """A run as it was found; `seconds` by epoch."""

    folder: Path
    config: Config
    status: str
    metrics: Sequence[Mapping[str, Any]]
    seconds: Mapping[int, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @cached_property
    def whole(self) -> list[Mapping[str, Any]]:
        """The epochs before the one in which it diverged."""
        return [line for line in self.metrics if not line.get("diverged")]

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def metric(self) -> Metric:
        return tasks.find(self.config.task).metric

    @cached_property
    def judged(self) -> dict[int, float]:
        """The metric by epoch; an expensive one is not measured after each."""
        values = {line["epoch"]: line[self.metric.key] for line in self.whole}
        return {epoch: float(value) for epoch, value in values.items() if value is not None}

    @property
    def best(self) -> float:
        return self.metric.best(self.judged.values())

    @property
    def final(self) -> float:
        return list(self.judged.values())[-1]

    def final_of(self, metric: Metric) -> float | None:
        """Another measure after the last epoch."""
        return self.whole[-1].get(metric.key)

    @property
    def validation(self) -> float | None:
        """The same measure on the images held out, after the last epoch."""
        what = self.metric.key.removeprefix("test_")
        return self.whole[-1].get(f"validation_{what}")

    def epochs_to(self, target: float) -> int | None:
        """The first epoch that came up to the target."""
        reached = (e for e, value in self.judged.items() if self.metric.reaches(value, target))
        return next(reached, None)

    def seconds_to(self, epoch: int) -> float | None:
        """Wall time until the end of an epoch, where all of it was noted."""
        times = [self.seconds.get(e) for e in range(1, epoch + 1)]
        return math.fsum(t for t in times if t is not None) if None not in times else None


# --- reading -------------------------------------------------------------------------------------


def read(paths: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """The runs in these folders, and a sentence for each folder that is none or is damaged."""
    found: dict[str, Record] = {}
    complaints = []
    for folder in folders(paths):
        try:
            record = read_run(folder)
        except UserError as error:
            complaints.append(visible(error))
            continue
        except Exception as error:  # whatever a reader may say of files that are no run's
            complaints.append(visible(f"{folder} cannot be read: {error}"))
            continue
        twin = found.get(record.config.name)
        if twin is not None:
            record, other = sorted((twin, record), key=progress, reverse=True)
            complaints.append(
                visible(f"{other.folder} is the same run as {record.folder}, with the same seed")
            )
        found[record.config.name] = record
    return list(found.values()), complaints


def planned(paths: Iterable[Path]) -> list[Config]:
    """What sweeps in these folders set out to run; a plan that cannot be read plans nothing."""
    found: dict[str, Config] = {}
    for plan in sorted(plan for path in paths for plan in path.glob("sweep-*.json")):
        with contextlib.suppress(UserError, OSError, ValueError, KeyError, TypeError):
            for values in json.loads(plan.read_text(encoding="utf-8"))["configs"]:
                config = Config.from_json(values, str(plan))
                found[config.name] = config
    return list(found.values())


def progress(record: Record) -> tuple[bool, int]:
    return record.status != "unfinished", len(record.metrics)


def folders(paths: Iterable[Path]) -> list[Path]:
    """Each path that is a run's, or else the folders in it; every folder once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no folder {visible(path)}")
        inside: list[Path] = []
        if path.is_dir() and not (path / "config.json").exists():
            inside = sorted(child for child in path.iterdir() if child.is_dir())
        for folder in inside or [path]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def read_run(folder: Path) -> Record:
    """The run in a folder; `UserError` says what is wrong with it."""
    config = disk.read_config(folder)
    if not (isinstance(config.model, str) and isinstance(config.optimizer, str)):
        raise UserError(f"{folder / 'config.json'} is not the settings of a run")
    if not isinstance(config.settings, dict):
        raise UserError(f"{folder / 'config.json'} has settings that are none")
    result = disk.read_end(folder)
    status = result["status"] if result else "unfinished"
    if result and status not in STATUSES:
        raise UserError(f"{folder / 'result.json'} has the unknown status {status!r}")
    metrics = disk.read_lines(folder / "metrics.jsonl")
    metric = tasks.find(config.task).metric
    check_metrics(metrics, metric, folder / "metrics.jsonl")
    if status == "finished" and len(metrics) != config.epochs:
        raise UserError(
            f"{folder} is damaged: it is finished, but metrics.jsonl has {len(metrics)} of "
            f"{config.epochs} epochs"
        )
    if status == "finished" and metrics[-1][metric.key] is None:
        raise UserError(
            f"{folder} is damaged: it is finished, but has no {metric.words} at its end"
        )
    return Record(
        folder=folder,
        config=config,
        status=status,
        metrics=metrics,
        seconds=read_seconds(folder / "times.jsonl"),
        environment=read_environment(folder / "env.json"),
        error=str(result.get("error", "")) if result else "",
    )


def check_metrics(lines: Sequence[Any], metric: Metric, path: Path) -> None:
    """The epochs in order, every measurement a number or null, the metric measured at the end."""
    for epoch, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or line.get("epoch") != epoch:
            raise UserError(f"{path} is damaged: line {epoch} is not that of epoch {epoch}")
        numbers = {name: value for name, value in line.items() if name != "diverged"}
        if not line.get("diverged") and metric.key not in line:
            raise UserError(f"{path} is damaged: epoch {epoch} has no {metric.words}")
        for name, value in numbers.items():
            if value is not None and not is_number(value):
                raise UserError(f"{path} is damaged: {name} of epoch {epoch} is not a number")


def read_seconds(path: Path) -> dict[int, float]:
    """Seconds by epoch; a run whose times are lost is still a run."""
    try:
        lines = disk.read_lines(path)
        return {int(line["epoch"]): float(line["seconds"]) for line in lines}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def read_environment(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def visible(text: object) -> str:
    """Without the characters that move a cursor, hide text or cannot be written."""
    shown = (
        c if c.isprintable() or c == NO_BREAK else "\N{REPLACEMENT CHARACTER}" for c in str(text)
    )
    return "".join(shown)


# --- cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their seed alone; `missing` are the seeds that were planned."""

    label: str
    config: Config  # of one of its runs
    records: tuple[Record, ...]
    missing: tuple[int, ...] = ()

    @cached_property
    def finished(self) -> dict[int, Record]:
        """By seed."""
        return {record.config.seed: record for record in self.records if record.finished}

    @property
    def optimizer(self) -> str:
        return visible(self.config.optimizer)


Group = list[Cell]  # of one task and model, to be compared


def groups(records: Iterable[Record], planned: Iterable[Config] = ()) -> list[Group]:
    """The cells of each task and model, SGDF first, then by name and learning rate."""
    found: dict[Any, list[Record]] = {}
    missing: dict[Any, list[Config]] = {}
    for record in sorted(records, key=lambda record: record.config.seed):
        found.setdefault(cell_key(record.config), []).append(record)
    present = {record.config.name for of_cell in found.values() for record in of_cell}
    for config in planned:
        if config.name not in present:
            missing.setdefault(cell_key(config), []).append(config)
    together: dict[tuple[str, str], list[Cell]] = {}
    for key in found.keys() | missing.keys():
        of_cell, absent = found.get(key, []), missing.get(key, [])
        config = of_cell[0].config if of_cell else absent[0]
        seeds = tuple(sorted({config.seed for config in absent}))
        cell = Cell("", config, tuple(of_cell), seeds)
        together.setdefault((config.task, config.model), []).append(cell)
    return [labelled(together[place]) for place in sorted(together)]


def cell_key(config: Config) -> Any:
    return frozen({**config.as_json(), "seed": None})


def labelled(cells: Group) -> Group:
    """In order, each with what tells it from the others of its task and model."""
    protocols = [protocol_words(cell.config) for cell in cells]
    names = dict.fromkeys(name for words in protocols for name in words)
    differing = [name for name in names if len({words.get(name) for words in protocols}) > 1]
    done = []
    for cell, words in zip(cells, protocols, strict=True):
        rivals = [c.config for c in cells if c.config.optimizer == cell.config.optimizer]
        parts = [cell.config.optimizer, *settings_words(cell.config, rivals)]
        parts += [words[name] for name in differing if words.get(name)]
        done.append(Cell(visible(", ".join(parts)), cell.config, cell.records, cell.missing))
    return sorted(done, key=place_in_order)


def place_in_order(cell: Cell) -> tuple[bool, str, float, str]:
    return cell.optimizer != "sgdf", cell.optimizer, learning_rate(cell.config) or 0, cell.label


def learning_rate(config: Config) -> float | None:
    lr = config.settings.get("lr")
    return float(lr) if lr is not None and is_number(lr) else None


def settings_words(config: Config, rivals: Sequence[Config]) -> list[str]:
    """The optimizer's settings that are not the same in all of the rivals."""
    names = dict.fromkeys(name for rival in rivals for name in rival.settings)
    words = []
    for name in names:
        values = {frozen(rival.settings.get(name, "default")) for rival in rivals}
        if len(values) > 1:
            words.append(f"{name} {in_words(config.settings.get(name, 'default'))}")
    return words


def protocol_words(config: Config) -> dict[str, str]:
    """All but the optimizer's settings, in words; what is not done has none."""
    return {
        "epochs": f"{config.epochs} epochs",
        "batch": f"batch {config.batch}",
        "schedule": schedule_words(config),
        "clip": f"clipped to {config.clip:g}" if config.clip else "",
        "accumulate": f"in {config.accumulate} pieces" if config.accumulate > 1 else "",
        "precision": config.precision,
        "data": f"{config.data} data",
        "validation": f"{config.validation} held out" if config.validation else "",
        "norms": "with norms" if config.norms else "",
        **{f"option {k}": f"{k} {in_words(config.options[k])}" for k in sorted(config.options)},
    }


def schedule_words(config: Config) -> str:
    """The same words for runs of any length whose steps come where the lab puts them."""
    if config.schedule != "step":
        return f"{config.schedule} lr"
    if not config.milestones:
        return "constant lr"
    by_rule = config.milestones == (math.ceil(0.75 * config.epochs),)
    at = "3/4 of the epochs" if by_rule else " and ".join(map(str, config.milestones))
    return f"lr × {config.drop:g} after {at}"


def in_words(value: Any) -> str:
    """A setting as a person would write it."""
    if is_number(value):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(in_words, value)) + ")"
    return str(value)


# --- beside the paper ---------------------------------------------------------------------------

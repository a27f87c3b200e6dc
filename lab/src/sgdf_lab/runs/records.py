"""Runs read back from disk."""

import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from sgdf_lab.runs import packed, results
from sgdf_lab.runs.config import Config, check_plain
from sgdf_lab.support.errors import UserError, describe, message_of, reason_of, visible
from sgdf_lab.support.files import read_text
from sgdf_lab.tasks import Metric

PACKED = ".jsonl"  # how the name of a file of packed runs ends


@dataclass(frozen=True)
class RunRecord:
    """A run as it was read: its settings, status and measurements.

    A place in it is a step, or an epoch if its task counts epochs.
    """

    folder: Path
    config: Config
    status: str
    metrics: Sequence[Mapping[str, Any]]  # one mapping per evaluation
    seconds: Mapping[int, float] = field(default_factory=dict)  # since the one before, by place
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @cached_property
    def valid_lines(self) -> list[Mapping[str, Any]]:
        """All measurements but that by which the run diverged."""
        return [line for line in self.metrics if not line.get("diverged")]

    @property
    def is_packed(self) -> bool:
        """Whether it is a line of a file; `folder` is then below that file."""
        return self.folder.parent.suffix == PACKED

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def on_cpu(self) -> bool:
        """Whether it was trained on a CPU; false if that is not known."""
        machine = self.environment.get("machine")
        return isinstance(machine, dict) and "cuda" in machine and machine["cuda"] is None

    @property
    def metric(self) -> Metric:
        return self.config.task_definition.metric

    @property
    def reached(self) -> int:
        """Its last place; 0 of a run that was not evaluated yet."""
        return self.config.place_of(self.metrics[-1]) if self.metrics else 0

    def by_place(self, key: str) -> dict[int, float]:
        """A measurement; an expensive one is not made after every epoch."""
        values = {self.config.place_of(line): line.get(key) for line in self.valid_lines}
        return {place: float(value) for place, value in values.items() if value is not None}

    @cached_property
    def values(self) -> list[float]:
        """The task's metric, each time that it was measured."""
        return [*self.by_place(self.metric.key).values()]

    @property
    def best(self) -> float:
        return self.metric.best(self.values)

    @property
    def final(self) -> float:
        return self.values[-1]

    def final_of(self, metric: Metric) -> float | None:
        """Another metric after the last epoch."""
        return self.valid_lines[-1].get(metric.key)

    @property
    def validation(self) -> float | None:
        """What settings are chosen by, after the last epoch; None if nothing was held out."""
        return self.valid_lines[-1].get(self.config.task_definition.validation_key)

    def first_at(self, target: float, key: str = "") -> int | None:
        """The first place where the task's metric, or another in its units, reached the target."""
        values = self.by_place(key or self.metric.key).items()
        return next((at for at, value in values if self.metric.reaches(value, target)), None)

    def seconds_to(self, place: int) -> float | None:
        """Wall time up to there; None if a part of it is not known."""
        places = [at for at in map(self.config.place_of, self.metrics) if at <= place]
        known = [self.seconds[at] for at in places if at in self.seconds]
        return math.fsum(known) if len(known) == len(places) else None


def read_runs(paths: Iterable[Path]) -> tuple[list[RunRecord], list[str]]:
    """The runs in these folders and packed files, and a sentence for each that is damaged."""
    records: dict[Hashable, RunRecord] = {}
    complaints: list[str] = []
    for folder, read in sources(paths, complaints):
        try:
            record = read()
            key = (record.config.cell_key, record.config.seed)  # lr=1 and lr=1.0 are one run
        except UserError as error:
            complaints.append(visible(message_of(error)))
            continue
        except Exception as error:  # files of any content may be in the folder
            complaints.append(visible(f"{folder} cannot be read: {reason_of(error)}"))
            continue
        twin = records.get(key)
        if twin is not None:
            record, other = sorted((twin, record), key=progress, reverse=True)
            is_copy = record.is_packed != other.is_packed and record.metrics == other.metrics
            if not is_copy:  # as --record makes them
                complaints.append(
                    visible(
                        f"{other.folder} is the same run as {record.folder}, with the same seed"
                    )
                )
        records[key] = record
    return list(records.values()), complaints


def read_planned(configs: Iterable[Config], out: Path) -> tuple[list[RunRecord], list[str]]:
    """Those of these runs that have a folder in `out`, and a sentence for each damaged one."""
    folders = (out / config.name for config in configs)
    return read_runs(folder for folder in folders if folder.is_dir())


def sources(
    paths: Iterable[Path], complaints: list[str]
) -> Iterator[tuple[Path, Callable[[], RunRecord]]]:
    """Where each run is, and a function that reads it."""
    for folder in run_folders(paths):
        if folder.suffix == PACKED and folder.is_file():
            runs, damaged = packed.read(folder)
            complaints += map(visible, damaged)
            for run in runs:
                yield folder / run["name"], partial(read_packed, run, folder / run["name"])
        else:
            yield folder, partial(read_run, folder)


def read_plans(paths: Iterable[Path]) -> tuple[list[Config], list[str]]:
    """The runs that sweeps in these folders planned, and a sentence for each damaged plan."""
    configs: dict[str, Config] = {}
    complaints = []
    for plan in sorted(plan for path in paths for plan in path.glob("sweep-*.json")):
        try:
            for values in json.loads(read_text(plan))["configs"]:
                config = Config.from_json(values, str(plan))
                configs[config.name] = config
        except UserError as error:
            complaints.append(visible(message_of(error)))
        except Exception as error:  # a file of any content may have the name
            complaints.append(visible(f"{plan} is not the plan of a sweep: {describe(error)}"))
    return list(configs.values()), complaints


def progress(record: RunRecord) -> tuple[bool, bool, int]:
    """How far it got, to compare two folders of one run; a failure is no end that counts."""
    ended = record.status != "unfinished"
    return ended, record.status != "failed", len(record.metrics)


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """Each path that is a run's folder or a packed file, or else those in it; each once."""
    unique: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no folder {visible(path)}")
        inside: list[Path] = []
        if path.is_dir() and not (path / "config.json").exists():
            # A hidden one is of a killed process that was still unpacking.
            inside = sorted(p for p in path.iterdir() if p.name[0] != "." and os.path.isdir(p))
            inside += [path / packed.FILE] * (path / packed.FILE).is_file()
        for folder in inside or [path]:
            unique.setdefault(folder.resolve(), folder)
    return list(unique.values())


# --- one run -------------------------------------------------------------------------------------


def read_run(folder: Path) -> RunRecord:
    """The run in a folder; a `UserError` says what is wrong with it."""
    return checked_record(
        folder,
        results.read_config(folder),
        results.read_end(folder),
        results.read_lines(folder / "metrics.jsonl"),
        times=or_nothing(results.read_lines, folder / "times.jsonl"),
        environment=results.read_object(folder / "env.json"),
    )


def read_packed(run: packed.Packed, folder: Path) -> RunRecord:
    """The run of a line of a packed file."""
    failure = {"status": "failed", "error": run.get("failure", {}).get("error", "")}
    return checked_record(
        folder,
        Config.from_json(run["config"], str(folder)),
        run.get("result", failure),
        run.get("metrics", []),
        times=run.get("times", []),
        environment=run.get("env", {}),
    )


def checked_record(
    folder: Path,
    config: Config,
    result: Mapping[str, Any] | None,
    metrics: Sequence[Any],
    *,
    times: Any,
    environment: Any,
) -> RunRecord:
    """Damaged times or a damaged environment lose no result: they count as none."""
    results.check_run(folder, config, result, metrics)
    return RunRecord(
        folder=folder,
        config=config,
        status=result["status"] if result else "unfinished",
        metrics=metrics,
        seconds=seconds_in(times, config),
        environment=environment_in(environment),
        error=str(result.get("error", "")) if result else "",
    )


def or_nothing(read: Callable[[Path], Any], path: Path) -> Any:
    """What a file holds; None if it cannot be read."""
    try:
        return read(path)
    except (OSError, ValueError, RecursionError):
        return None


def seconds_in(lines: Any, config: Config) -> dict[int, float]:
    try:
        seconds = {config.at(int(line["epoch"])): line["seconds"] for line in lines}
    except (ValueError, TypeError, KeyError):
        return {}
    return seconds if all(map(results.is_measured, seconds.values())) else {}


def environment_in(values: Any) -> dict[str, Any]:
    """Command, commit and machine."""
    try:
        environment = dict(values)
        check_plain("env.json", environment)
    except (ValueError, TypeError, UserError):
        return {}
    return environment

"""The contestants of a tuned sweep: the plan, matched with the runs that there are; its stages.

The choice of a setting is made here, for the sweep that trains it and for every report on it: the
best final validation metric. With `finalists` the best trials run again with other seeds, and the
best mean of these is chosen, since the best of many trials of one seed may be a lucky run of a
setting that is bad on average. The same command resumes every stage.
"""

import statistics
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sgdf_lab.runs.config import Config, frozen
from sgdf_lab.runs.records import RunRecord, read_planned
from sgdf_lab.runs.results import read_checked
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numbers import is_number
from sgdf_lab.sweeps.plan import OWN_IMAGES, Grid, Sweep, Tuned, validation_key
from sgdf_lab.tasks import Metric

#: Options by which a run knows a user's own text; a plan may be made where that text is not.
OF_DATA = ("corpus", "fingerprint")
LEAST_TRIED = 3  # values, for a statement about an edge


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan; `record` is None if there is none yet."""

    config: Config
    record: RunRecord | None

    @property
    def status(self) -> str:
        return "missing" if self.record is None else self.record.status

    @property
    def has_ended(self) -> bool:
        return self.status in ("finished", "diverged", "failed")

    @property
    def is_lost(self) -> bool:
        """It has ended, without a value."""
        return self.status in ("diverged", "failed")

    def final(self, key: str) -> float | None:
        """A metric after the last step; None of a run that has not finished."""
        if self.record is None or not self.record.finished:
            return None
        value: float | None = self.record.metrics[-1].get(key)
        return value

    @property
    def validation(self) -> float | None:
        """The metric that settings are chosen by."""
        return self.final(validation_key(self.config))


@dataclass(frozen=True)
class Contestant:
    """An optimizer with what its cell fixes: its trials, and the seeds of its best setting."""

    trials: tuple[PlannedRun, ...]
    finals: tuple["Finalist", ...]  # best trial first; without such a stage, only that one
    chosen: PlannedRun | None  # one of the trials; None if none has finished
    seeds: tuple[PlannedRun, ...]  # of the chosen setting; none without a choice
    label: str = ""

    @property
    def optimizer(self) -> str:
        return self.trials[0].config.optimizer

    @property
    def ended(self) -> list[PlannedRun]:
        return [trial for trial in self.trials if trial.has_ended]

    @property
    def runs(self) -> list[PlannedRun]:
        return [*self.trials, *(run for final in self.finals for run in final.runs), *self.seeds]


@dataclass(frozen=True)
class Finalist:
    """One of the best trials, and its runs with the seeds of the choice."""

    trial: PlannedRun
    runs: tuple[PlannedRun, ...]

    @property
    def mean(self) -> float | None:
        """None if a run diverged, failed or is missing: a mean over the others is too good."""
        values = [run.validation for run in self.runs]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known and len(known) == len(values) else None


# --- the choice ----------------------------------------------------------------------------------


def ranking(validation: Sequence[Sequence[float | None]], metric: Metric) -> list[int]:
    """The candidates for a choice, best first, by the validation values of their runs.

    A value is None if the run diverged or failed. Candidates with fewer such runs come first, then
    those with the better mean; of equal ones the first. Those without any value are left out.

    >>> ranking([[1.0, None], [3.0, 3.0], [None, None], [2.0, 2.0]], Metric("test_loss", "loss"))
    [1, 3, 0]
    """
    sign = 1 if metric.lower_is_better else -1
    keys = []
    for i, values in enumerate(validation):
        known = [value for value in values if value is not None]
        if known:
            keys.append((len(values) - len(known), sign * statistics.fmean(known), i))
    return [i for _, _, i in sorted(keys)]


def finalists_of(trials: Sequence[PlannedRun], sweep: Tuned, find: "Finder") -> list[Finalist]:
    """The best trials, with their runs of the seeds of the choice."""
    metric = trials[0].config.task_definition.metric
    order = ranking([[trial.validation] for trial in trials], metric)
    found = []
    for trial in (trials[i] for i in order[: max(sweep.finalists, 1)]):
        again = [replace(trial.config, seed=seed) for seed in sweep.choice_seeds]
        found.append(Finalist(trial, tuple(PlannedRun(config, find(config)) for config in again)))
    return found


def best_finalist(finals: Sequence[Finalist]) -> PlannedRun | None:
    """The best finalist; without runs of finalists, the best trial."""
    if not finals:
        return None
    metric = finals[0].trial.config.task_definition.metric
    order = ranking([[run.validation for run in final.runs] for final in finals], metric)
    return finals[order[0] if order else 0].trial


# --- the plan and its runs -----------------------------------------------------------------------


def contestants_of(sweep: Tuned, records: Iterable[RunRecord]) -> list[Contestant]:
    """The contestants in the order of the file, with the runs among the records that they have."""
    if len({(config.task, config.data) for config in sweep.configs}) > 1:
        raise UserError(f"{sweep.name} is of several tasks: a comparison needs a file for each")
    find = Finder(records)
    found = []
    for configs in sweep.trials:
        trials = tuple(PlannedRun(config, find(config)) for config in configs)
        finals = tuple(finalists_of(trials, sweep, find))
        best = best_finalist(finals)
        again = [replace(best.config, seed=s) for s in sweep.seeds] if best else []
        seeds = tuple(PlannedRun(config, find(config)) for config in again)
        found.append(Contestant(trials, finals, best, seeds))
    refuse_mixed_data(run for c in found for run in c.runs)
    return found


def refuse_mixed_data(runs: Iterable[PlannedRun]) -> None:
    """Each run may have been found once, and yet not all of them on the same data."""
    configs = [run.record.config for run in runs if run.record]
    known = {name for config in configs if (name := config.options.get("fingerprint"))}
    if len(known) > 1:
        raise mixed_data(len(known))


def mixed_data(count: int) -> UserError:
    return UserError(
        f"the runs are of {count} sets of data: say which, with --set corpus=PATH or --data-dir "
        "DIR as in the sweep"
    )


class Finder:
    """Finds the run of a planned config; what the plan does not say of its data may be anything."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self.records: dict[Hashable, list[RunRecord]] = {}
        for record in records:
            self.records.setdefault(without_data(record.config), []).append(record)

    def __call__(self, config: Config) -> RunRecord | None:
        said = said_of_data(config)
        found = [
            record
            for record in self.records.get(without_data(config), [])
            if said.items() <= said_of_data(record.config).items()
        ]
        if len(found) > 1:
            raise mixed_data(len(found))
        return found[0] if found else None


def said_of_data(config: Config) -> dict[str, Any]:
    """What a config says of its data: of a path only the last part, by which a run is known."""
    said = {name: config.options[name] for name in OF_DATA if name in config.options}
    if "corpus" in said:
        said["corpus"] = Path(str(said["corpus"])).name
    return said


def without_data(config: Config) -> Hashable:
    values = config.as_json()
    options = {name: v for name, v in values["options"].items() if name not in OF_DATA}
    key: Hashable = frozen({**values, "options": options})
    return key


# --- edges ---------------------------------------------------------------------------------------


def edges_of(contestant: Contestant) -> list[str]:
    """The settings of the choice that are the smallest or the largest of all that were tried.

    A Sobol sequence has about one trial in every n-th part of a range, so that such a setting is in
    its first or last part: a better one may lie beyond. Trials that diverged count as tried.
    """
    if contestant.chosen is None:
        return []
    own = numbers_in(contestant.chosen.config.settings)
    others = [numbers_in(trial.config.settings) for trial in contestant.trials]
    found = []
    for name, value in own.items():
        tried = sorted({settings[name] for settings in others if name in settings})
        if edge := edge_of(value, tried):
            found.append(f"{edge} {name}")
    return found


def edge_of(value: float, tried: Sequence[float], least: int = LEAST_TRIED) -> str:
    """Whether a value is the "smallest" or the "largest" of those that were tried, in order.

    >>> edge_of(0.1, [0.1, 0.2, 0.3]), edge_of(0.2, [0.1, 0.2, 0.3]), edge_of(0.1, [0.1, 0.2])
    ('smallest', '', '')
    """
    at_end = len(tried) >= least and value in (tried[0], tried[-1])
    return ("largest" if value == tried[-1] else "smallest") if at_end else ""


def numbers_in(settings: Any) -> dict[str, float]:
    """The settings that are numbers; betas one by one."""
    numbers: dict[str, float] = {}
    for name, value in settings.items():
        if is_number(value):
            numbers[name] = value
        elif name == "betas" and isinstance(value, list | tuple):
            numbers |= {f"beta{i}": beta for i, beta in enumerate(value, start=1)}
    if settings.get("gain_power") == 0:
        numbers.pop("gain_scale", None)  # follows from beta1
    return numbers


# --- the stages of a sweep -----------------------------------------------------------------------


def stages(sweep: Sweep, out: Path) -> Iterator[Grid]:
    """The stages of a sweep; the next one is planned when the runs of the one before have ended."""
    if isinstance(sweep, Grid):
        yield sweep
        return
    yield trials_of(sweep)
    if sweep.finalists:
        yield finals_of(sweep, out)
    yield best_of(sweep, out)


def trials_of(sweep: Tuned) -> Grid:
    title = f"{sweep.title}: {len(sweep.trials[0])} trials of each"
    return Grid(sweep.name, title, sweep.configs, is_choice=True)


def finals_of(sweep: Tuned, out: Path) -> Grid:
    """The best trials of every contestant, with the seeds of the choice."""
    wait_for(sweep.configs, out, "trials")
    chosen = [final.trial.config for c in contestants_in(sweep, out) for final in c.finals]
    planned = tuple(replace(config, seed=seed) for seed in sweep.choice_seeds for config in chosen)
    title = f"{sweep.title}: the best {sweep.finalists} of each"
    return Grid(f"{sweep.name}-finals", title, planned, is_choice=True)


def best_of(sweep: Tuned, out: Path) -> Grid:
    """The best setting of every contestant that has a finished trial, with every seed."""
    wait_for(sweep.configs, out, "trials")
    if sweep.finalists:
        wait_for(finals_of(sweep, out).configs, out, "runs of finalists")
    chosen = [c.chosen.config for c in contestants_in(sweep, out) if c.chosen]
    if not chosen:
        first = sweep.configs[0]
        raise UserError(f"no trial of {first.optimizer} on {first.task} has finished")
    planned = tuple(replace(config, seed=seed) for seed in sweep.seeds for config in chosen)
    title = f"{sweep.title}: the best setting of each"
    return Grid(f"{sweep.name}-best", title, planned, chosen_from=sweep)


def wait_for(configs: Sequence[Config], out: Path, words: str) -> None:
    """Among fewer runs the choice might be another one."""
    waiting = sum(read_checked(out / config.name, config) is None for config in configs)
    if waiting:
        raise UserError(
            f"{waiting} of {len(configs)} {words} have not ended (another process may be "
            "training them): the same command continues when they have"
        )


def contestants_in(sweep: Tuned, out: Path) -> list[Contestant]:
    """The contestants with the runs that are in a folder."""
    seeds = (*sweep.choice_seeds, *sweep.seeds)
    again = [replace(config, seed=seed) for seed in seeds for config in sweep.configs]
    records, _ = read_planned([*sweep.configs, *again], out)
    return contestants_of(sweep, records)


def check_validation_images(sweep: Tuned, data_dir: Path | None) -> None:
    """Whether a user's own folder has images to choose by, which its plan does not say."""
    if all(config.validation or config.task != OWN_IMAGES for config in sweep.configs):
        return
    from sgdf_lab.data import class_folders

    dataset = class_folders.read(data_dir)
    if "validation" not in dataset.evaluation:
        raise UserError(
            f"trials are compared by validation: set validation=N, since {dataset.folder} has no "
            "train, val and test"
        )

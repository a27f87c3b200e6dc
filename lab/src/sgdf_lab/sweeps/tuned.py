"""The stages of a sweep: as many trials for everyone, then several seeds of the best.

The setting with the best final validation metric is chosen, and trained with every seed. With
`finalists` there is a stage between: the best trials run again with other seeds, and the best mean
of these is chosen, since the best of many trials of one seed may be a lucky run of a setting that
is bad on average. The same command resumes every stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import read_runs
from sgdf_lab.runs.results import read_checked
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps.contestants import Contestant, contestants_of
from sgdf_lab.sweeps.plan import OWN_IMAGES, Grid, Sweep, Tuned


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
    return Grid(sweep.name, f"{sweep.title}: {len(sweep.trials[0])} trials of each", sweep.configs)


def finals_of(sweep: Tuned, out: Path) -> Grid:
    """The best trials of every contestant, with the seeds of the choice."""
    wait_for(sweep.configs, out, "trials")
    chosen = [final.trial.config for c in contestants_in(sweep, out) for final in c.finals]
    planned = tuple(replace(config, seed=seed) for seed in sweep.choice_seeds for config in chosen)
    title = f"{sweep.title}: the best {sweep.finalists} of each"
    return Grid(f"{sweep.name}-finals", title, planned)


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
    folders = (out / config.name for config in (*sweep.configs, *again))
    records, _ = read_runs(folder for folder in folders if folder.is_dir())
    return contestants_of(sweep, records)


def check_validation_images(sweep: Tuned, data_dir: Path | None) -> None:
    """Whether a user's own folder has images to choose by, which the plan alone does not say."""
    if all(config.validation or config.task != OWN_IMAGES for config in sweep.configs):
        return
    from sgdf_lab.data import class_folders

    dataset = class_folders.read(data_dir)
    if "validation" not in dataset.evaluation:
        raise UserError(
            f"trials are compared by validation: set validation=N, since {dataset.folder} has no "
            "train, val and test"
        )

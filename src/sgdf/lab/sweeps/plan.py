"""Sweeps: a grid of settings times seeds, several runs at a time, here or on a Ray cluster.

A sweep that is killed, or loses a worker or a node, loses no more than the epochs in hand: the
same command goes on. Importing this needs no more than sgdf itself does.
"""

import contextlib
import dataclasses
import itertools
import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf.lab import data, paper, tasks
from sgdf.lab.data import synthetic
from sgdf.lab.runs import config as configs
from sgdf.lab.runs.config import Config
from sgdf.support.errors import UserError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from sgdf.lab.runs.session import Place

WORDS = ("task", "model", "optimizer", "epochs", "precision", "data")  # options; others: settings
ENGINES = ("local", "ray")
KEYS = (*WORDS, "title", "seeds", "set", "grid", "cells")


@dataclass(frozen=True)
class Sweep:
    """Runs to compare, in the order in which they run: all cells with one seed, then the next."""

    name: str
    title: str
    configs: tuple[Config, ...]
    note: str = ""  # what a reader of the results has to know


# --- from what a user says ----------------------------------------------------------------------


def read(path: Path, said: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep of a TOML file; what is `said` on the command line goes before the file."""
    words, said = configs.read_toml(path), dict(said or {})
    try:
        settings = {**table(words, "set"), **said.pop("set", {})}
        return plan(path.stem, {**words, **said, "set": settings})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def plan(name: str, words: Mapping[str, Any]) -> Sweep:
    """A sweep from the words of a sweep file."""
    for word in words:
        if word not in KEYS:
            raise unknown("key", word, KEYS)
    title = words.get("title", name)
    if not isinstance(title, str):
        raise UserError(f"title is a text, not {title!r}")
    shared = {**{w: words[w] for w in WORDS if w in words}, **table(words, "set")}
    cells = [{**shared, **cell} for cell in (*combinations(words), *further_cells(words))]
    if not cells:
        raise UserError("there is nothing to run: give a [grid] of lists, or [[cells]]")
    seeds = seeds_of(words)
    first = [config_of(cell, seeds[0]) for cell in cells]
    refuse_twins(first)
    made = tuple(dataclasses.replace(config, seed=seed) for seed in seeds for config in first)
    return Sweep(name, title, made)


def table(words: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = words.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{name} is a table: write [{name}] above its settings")
    return found


def combinations(words: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the grid's values."""
    grid = table(words, "grid")
    for name, values in grid.items():
        if name in ("seed", "seeds"):
            raise UserError("seeds stand outside of the grid, as in seeds = [0, 1, 2]")
        if not isinstance(values, list):
            raise UserError(f"in the grid, {name} is a list of values, not {values!r}")
        if not values:
            raise UserError(f"in the grid, {name} has no values")
    if not grid:
        return []
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def further_cells(words: Mapping[str, Any]) -> list[dict[str, Any]]:
    cells = words.get("cells", [])
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError("cells are tables: write [[cells]] above the settings of each")
    if any(name in ("seed", "seeds") for cell in cells for name in cell):
        raise UserError("seeds stand outside of the cells, as in seeds = [0, 1, 2]")
    return cells


def seeds_of(words: Mapping[str, Any]) -> list[int]:
    seeds = words.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UserError(f"seeds is a list of whole numbers, like [0, 1, 2], not {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds has one of its numbers twice: {seeds}")
    return seeds


def config_of(cell: Mapping[str, Any], seed: int) -> Config:
    options = {word: cell[word] for word in WORDS if word in cell}
    for word, value in options.items():
        if word == "epochs":
            if type(value) is not int or value < 1:
                raise UserError(f"epochs is a whole number from 1 on, not {value!r}")
        elif not isinstance(value, str):
            raise UserError(f"{word} is a name, not {value!r}")
    if "task" not in options:
        raise UserError(f"which task? There are {', '.join(tasks.TASKS)}")
    overrides = {name: value for name, value in cell.items() if name not in WORDS}
    return configs.make(**options, seed=seed, overrides=overrides)


def refuse_twins(made: Iterable[Config]) -> None:
    seen = set()
    for config in made:
        key = cell_key(config)
        if key in seen:
            what = ", ".join(f"{name} = {value}" for name, value in config.settings.items())
            raise UserError(
                f"a cell is there twice: {config.task} {config.model} {config.optimizer}, {what}"
            )
        seen.add(key)


def cell_key(config: Config) -> str:
    """The same for runs that differ in their seed alone; 1 and 1.0 are the same setting."""
    values = json.loads(json.dumps({**config.as_json(), "seed": None}), parse_int=float)
    return json.dumps(values, sort_keys=True)


# --- presets ------------------------------------------------------------------------------------


def with_half_steps(rates: Iterable[float]) -> list[float]:
    """Half of a rate wherever the next is a tenth of it, as the paper itself has 1, 0.5, 0.1.

    >>> with_half_steps((1.0, 0.5, 0.1, 0.01))
    [1.0, 0.5, 0.1, 0.05, 0.01]
    """
    falling = sorted(rates, reverse=True)
    halves = [high / 2 for high, low in itertools.pairwise(falling) if high > 5.001 * low]
    return sorted({*falling, *halves}, reverse=True)


def lr_grid(task: str) -> list[dict[str, Any]]:
    return [
        {"optimizer": optimizer, "lr": lr}
        for optimizer in ("sgdf", "sgd", "adam")
        for lr in with_half_steps(paper.LEARNING_RATES[optimizer])
    ]


def budget(task: str) -> list[dict[str, Any]]:
    """The full published grids: beta1 with the beta2 of the published settings."""
    cells = []
    for optimizer, search in paper.SEARCHES.items():
        _, beta2 = paper.settings(task, optimizer).get("betas", (0.9, 0.999))
        grids: dict[str, Iterable[Any]] = {"lr": search.lr}
        if search.beta1:
            grids["betas"] = [[beta1, beta2] for beta1 in search.beta1]
        if search.weight_decay:
            grids["weight_decay"] = search.weight_decay
        cells += [
            {"optimizer": optimizer, **dict(zip(grids, values, strict=True))}
            for values in itertools.product(*grids.values())
        ]
    return cells


PRESETS: dict[str, tuple[str, Callable[[str], list[dict[str, Any]]]]] = {
    "lr-grid": (
        "The paper's learning rates, and half steps between, for three optimizers",
        lr_grid,
    ),
    "budget": ("Every optimizer that the paper searched, over its published grid", budget),
}


def preset(name: str, said: Mapping[str, Any]) -> Sweep:
    """A search by name. A tenth of the training images is held out, to choose by."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    if "task" not in said:
        raise UserError(f"the preset {name} needs a task: --task, of {', '.join(tasks.TASKS)}")
    task = tasks.find(said["task"])
    title, cells = PRESETS[name]
    if task.kind not in ("classify", "photos"):
        raise UserError(f"the preset {name} is for tasks with classes, which {task.name} is not")
    is_synthetic = said.get("data") == "synthetic"
    images = synthetic.TRAIN if is_synthetic else data.find(task.dataset).train
    settings = {"validation": images // 10, **said.get("set", {})}
    full_name = "-".join((name, task.name, said.get("model") or task.model))
    return plan(full_name, {**said, "title": title, "cells": cells(task.name), "set": settings})


# --- running ------------------------------------------------------------------------------------


def run_all(
    wanted: Sequence[Config],
    place: "Place",
    *,
    jobs: int = 1,
    together: int = 1,
    engine: str = "local",
    address: str | None = None,
    cpus_per_run: float = 1,
    gpus_per_run: float | None = None,
    retry: bool = False,
    console: "Console | None" = None,
) -> list[dict[str, Any]]:
    """Bring all runs to their end and return their results, in the order of `wanted`.

    Runs that have ended are left as they are, also those that failed, unless told to `retry`.
    With one job the runs are in this process, `together` at a time; a failure is a result with
    the status "failed" and its "error".
    """
    from rich.console import Console

    from sgdf.lab.sweeps import worker

    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    console = console or Console()
    results = ended_before(wanted, place, retry, console)
    todo = [config for config in by_turns(wanted) if config.name not in results]
    with board(wanted, results, place, console) as say, interruptible():
        if engine == "ray":
            ended = on_cluster(todo, place, say, address, cpus_per_run, gpus_per_run)
        else:
            check_data(todo, place)
            if jobs > 1:
                ended = worker.run_local(todo, place, jobs, say)
            else:
                ended = worker.run_here(todo, place, together, say)
        try:
            collect(ended, results, say)
        except KeyboardInterrupt:
            done = sum(config.name in results for config in wanted)
            raise KeyboardInterrupt(
                f"stopped with {done} of {len(wanted)} runs at their end; the same command goes on"
            ) from None
    return [results[config.name] for config in wanted]


def collect(
    ended: Generator[tuple[Config, dict[str, Any]], None, None],
    results: dict[str, dict[str, Any]],
    say: Callable[[str], None],
) -> None:
    from sgdf.lab.runs.session import outcome

    with contextlib.closing(ended):  # which is what stops the others when this one is interrupted
        for config, result in ended:
            results[config.name] = result
            say(outcome(config, result))


def on_cluster(
    todo: list[Config],
    place: "Place",
    say: Callable[[str], None],
    address: str | None,
    cpus: float,
    gpus: float | None,
) -> Generator[tuple[Config, dict[str, Any]], None, None]:
    try:
        from sgdf.lab.sweeps import cluster
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install "sgdf[cluster]"') from None
    if todo:
        yield from cluster.run(todo, place, say, address=address, cpus=cpus, gpus=gpus)


def check_data(todo: Iterable[Config], place: "Place") -> None:
    """Data that is not there is said once, and not by every run."""
    from sgdf.lab.tasks import trainers

    for config in {(config.task, config.data): config for config in todo}.values():
        trainers.check(config, place.data_dir)


def ended_before(
    wanted: Sequence[Config], place: "Place", retry: bool, console: "Console"
) -> dict[str, dict[str, Any]]:
    from sgdf.lab.runs.session import outcome
    from sgdf.lab.sweeps.worker import known_end

    results = {}
    for config in wanted:
        result = known_end(config, place)
        if result and not (retry and result["status"] == "failed"):
            results[config.name] = result
            if result["status"] == "failed":
                line = f"{outcome(config, result)} (before; --retry tries again)"
                console.print(line, soft_wrap=True, markup=False, highlight=False)
    return results


def by_turns(wanted: Iterable[Config]) -> list[Config]:
    """The first seed of every cell before the second of any, so that a table fills evenly."""
    seen: Counter[str] = Counter()
    turns: dict[str, tuple[int, Config]] = {}
    for config in wanted:
        if config.name not in turns:
            turns[config.name] = (seen[cell_key(config)], config)
            seen[cell_key(config)] += 1
    return [config for _, config in sorted(turns.values(), key=lambda turn: turn[0])]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A polite kill is heard as Ctrl-C is."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread is told of signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def board(
    wanted: Sequence[Config], results: Mapping[str, Any], place: "Place", console: "Console"
) -> Iterator[Callable[[str], None]]:
    """Shows how far the runs are, on a terminal; gives the function that prints a line above."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    if not console.is_terminal:
        yield say
        return
    columns = (
        TextColumn("{task.fields[ended]} of " + f"{len(wanted)} runs"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} epochs"),
        TimeRemainingColumn(),
    )
    stop = threading.Event()

    def follow(progress: Progress) -> None:
        bar = progress.add_task("", total=sum(c.epochs for c in wanted), ended=0)
        while True:
            done = sum(epochs_done(config, config.name in results, place) for config in wanted)
            progress.update(bar, completed=done, ended=len(results))
            if stop.wait(0.5):
                return

    with Progress(*columns, console=console, transient=True) as progress:
        follower = threading.Thread(target=follow, args=(progress,), daemon=True)
        follower.start()
        try:
            yield say
        finally:
            stop.set()
            follower.join()


def epochs_done(config: Config, has_ended: bool, place: "Place") -> int:
    if has_ended:
        return config.epochs
    try:
        return (place.out / config.name / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def write_plan(sweep: Sweep, place: "Place") -> None:
    """What is to be run, so that a report can say what is missing."""
    from sgdf.support.files import explained, write_atomically

    planned = {
        "name": sweep.name,
        "title": sweep.title,
        "note": sweep.note,
        "command": place.command,
        "configs": [config.as_json() for config in sweep.configs],
    }
    with explained(place.out):
        place.out.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]", "_", sweep.name)
        write_atomically(place.out / f"sweep-{name}.json", json.dumps(planned, indent=2) + "\n")

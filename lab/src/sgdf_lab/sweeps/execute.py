"""Execute a sweep: stage by stage, several runs at a time, here or on a Ray cluster.

A sweep that is killed, or loses a worker or a node, loses at most the epochs since the last
checkpoints: the same command resumes it.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sgdf_lab.runs import packed
from sgdf_lab.runs.config import Config, frozen
from sgdf_lab.runs.progress import duration
from sgdf_lab.runs.results import check_settings_of, outcome, read_checked
from sgdf_lab.runs.session import RunContext, seconds_of_run, sigterm_as_interrupt
from sgdf_lab.support.errors import UserError, describe, message_of, unknown, visible
from sgdf_lab.support.files import explained
from sgdf_lab.support.numerics import find_device
from sgdf_lab.support.tables import say
from sgdf_lab.sweeps import ENGINES, contestants, worker
from sgdf_lab.sweeps.plan import Grid, Sweep, Tuned, lines_of_search, stage_sizes, write_plan
from sgdf_lab.sweeps.progress import board
from sgdf_lab.sweeps.worker import Notify, Results, attempt, record_failure
from sgdf_lab.training.distributed import is_team

TOGETHER = 3  # runs that a GPU has room for


@dataclass(frozen=True)
class Engine:
    """Where the runs are computed, and how many at a time."""

    name: str = "local"  # this machine, "stack": many runs as one, or "ray" for a cluster
    jobs: int | None = None  # worker processes; default: 1 on a GPU, one per core on a CPU
    together: int | None = None  # with one job, runs side by side in it; default: 3 on a GPU
    address: str | None = None  # of the Ray cluster, HOST:PORT; default: the one on this machine
    cpus_per_run: float = 1  # what Ray reserves for a run
    gpus_per_run: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise unknown("engine", self.name, ENGINES)
        if self.name != "ray" and (self.address or self.gpus_per_run is not None):
            raise UserError("--address and --gpus-per-run are of Ray: add --engine ray")
        if self.cpus_per_run < 0 or (self.gpus_per_run or 0) < 0:
            raise UserError("--cpus-per-run and --gpus-per-run are numbers of at least 0")

    def device(self, wanted: str | torch.device | None) -> torch.device:
        """Where the runs are computed: on a GPU of Ray's nodes even if this machine has none."""
        if self.name == "ray" and (self.gpus_per_run or str(wanted) == "cuda"):
            return torch.device("cuda")
        return find_device(wanted)

    def at_once(self, device: torch.device) -> tuple[int, int]:
        """Worker processes, and runs side by side if there is only one."""
        on_gpu = device.type == "cuda"
        jobs = self.jobs or (1 if on_gpu else available_cores())
        return jobs, self.together or (TOGETHER if on_gpu else 1)


def available_cores() -> int:
    """The cores that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- all stages -----------------------------------------------------------------------------------


def refuse_team() -> None:
    """Each process would run all of it."""
    if is_team():
        raise UserError("torchrun shares one run among processes: use it with sgdf train only")


def run_sweep(
    sweep: Sweep,
    context: RunContext,
    engine: Engine,
    *,
    retry: bool = False,
    record: Path | None = None,
    console: Console | None = None,
    show: Callable[[Grid], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train the runs of all stages to their end, and return their results.

    Args:
        sweep: the plan.
        context, engine: where and how.
        retry: train runs again that failed in an earlier sweep.
        record: a file that keeps every ended run as well; none is trained again that is in it.
        console: where progress is shown.
        show: called with every stage that has ended, or was interrupted.
    """
    refuse_team()
    console = console or Console()
    sweep = sweep.with_data(context.data_dir)
    if isinstance(sweep, Tuned):
        contestants.check_validation_images(sweep, context.data_dir)
        for line in lines_of_search(sweep):
            say(console, line)
    results: list[dict[str, Any]] = []
    for stage in contestants.stages(sweep, context.out):
        write_plan(stage, context.out, context.command)
        with recorded(stage, context.out, record, console) as on_end:
            try:
                if console.is_terminal:
                    say(console, plan_in_words(stage, context, engine))
                results += run_all(
                    stage.configs, context, engine, retry=retry, console=console, on_end=on_end
                )
            finally:
                show(stage)
    return results


def estimate(sweep: Sweep, context: RunContext, engine: Engine) -> str:
    """About how long all stages take on this CPU, in a sentence, from a few steps of each kind."""
    if engine.name != "local" or context.device.type != "cpu":
        return "No estimate of the time: that of a GPU or a cluster is not known before it runs"
    jobs, _ = engine.at_once(context.device)
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, available_cores() // jobs))
    try:
        sweep = sweep.with_data(context.data_dir)
        kinds = {kind_of(config): config for config in reversed(sweep.configs)}
        seconds = {kind: seconds_of_run(config, context) for kind, config in kinds.items()}
    except (Exception, SystemExit) as error:  # a user's optimizer or data
        return f"No estimate of the time: {describe(error)}"
    finally:
        torch.set_num_threads(before)
    later = sum(stage_sizes(sweep).values()) / len(sweep.configs)
    total = later * sum(seconds[kind_of(config)] for config in sweep.configs) / jobs
    at_once = f"{jobs} at a time" if jobs > 1 else "one at a time"
    return (
        f"About {duration(total)} on {context.device}, {at_once}, at the pace of the first steps; "
        "what has run already is not taken off"
    )


def kind_of(config: Config) -> Hashable:
    """Runs of one kind take about as long."""
    key: Hashable = frozen({**config.identity, "seed": None, "settings": None})
    return key


def plan_in_words(stage: Grid, context: RunContext, engine: Engine) -> str:
    count = len(stage.configs)
    runs = "1 run" if count == 1 else f"{count} runs"
    if engine.name == "ray":
        how = "on Ray"
    elif engine.name == "stack":
        how = f"in stacks on {context.device}"
    else:
        jobs, together = engine.at_once(context.device)
        at_once = min(count, jobs if jobs > 1 else together)
        how = f"on {context.device}, {'one' if at_once == 1 else at_once} at a time"
    return f"{runs} {how}, written to {visible(context.out)}; the same command resumes them"


@contextlib.contextmanager
def recorded(
    stage: Grid, out: Path, file: Path | None, console: Console
) -> Iterator[Callable[[Config], None]]:
    """Take earlier runs from the file; yields a function that adds one to it.

    A machine that vanishes loses no run that has ended.
    """
    if file is None:
        yield lambda _: None
        return
    folders = [out / config.name for config in stage.configs]
    names = {folder.name for folder in folders}
    if taken := packed.complete(file, out, names) + packed.unpack(file, out, names):
        say(console, f"{taken} of {len(folders)} runs were in {visible(file)}")
    packed.pack(folders, file)
    try:
        yield lambda config: packed.pack([out / config.name], file)
    finally:
        packed.pack(folders, file)  # a run may have ended while the sweep was being stopped


# --- the runs of one stage ------------------------------------------------------------------------


def run_all(
    configs: Sequence[Config],
    context: RunContext,
    engine: Engine,
    *,
    retry: bool = False,
    console: Console | None = None,
    on_end: Callable[[Config], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train all runs to their end and return their results, in the order of `configs`.

    A failure is a result with the status "failed" and its "error". `on_end` is called with every
    run that ends, here and now.
    """
    console = console or Console()
    results = earlier_results(configs, context, retry, console)
    remaining = [config for config in in_order_of_seeds(configs) if config.name not in results]
    with board(configs, results, context, console) as notify, sigterm_as_interrupt():
        ended = ended_runs(remaining, context, engine, notify)
        try:
            with contextlib.closing(ended):  # on an interrupt, this stops the runs in progress
                for config, result in ended:
                    results[config.name] = result
                    notify(outcome(config, result))
                    on_end(config)
        except KeyboardInterrupt:
            done = sum(config.name in results for config in configs)
            raise KeyboardInterrupt(
                f"stopped after {done} of {len(configs)} runs; the same command resumes the rest"
            ) from None
    return [results[config.name] for config in configs]


def ended_runs(
    configs: list[Config], context: RunContext, engine: Engine, notify: Notify
) -> Results:
    """Train the runs, and yield each with its result when it has ended."""
    if engine.name == "ray":
        yield from on_cluster(configs, context, engine, notify)
        return
    check_data(configs, context)
    if engine.name == "stack":
        from sgdf_lab.sweeps import stacked

        yield from stacked.run(configs, context, engine.together or stacked.TOGETHER, notify)
        return
    jobs, together = engine.at_once(context.device)
    if jobs > 1:
        threads = max(1, available_cores() // jobs)
        yield from worker.run_in_processes(configs, context, jobs, threads, notify)
        return
    for start in range(0, len(configs), together):
        group = configs[start : start + together]
        yield from zip(group, attempt(group, context, notify), strict=True)


def on_cluster(
    configs: list[Config], context: RunContext, engine: Engine, notify: Notify
) -> Results:
    try:
        from sgdf_lab.sweeps import cluster
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install "sgdf-lab[cluster]"') from None
    if configs:
        yield from cluster.run_on_cluster(
            configs,
            context,
            notify,
            address=engine.address,
            cpus=engine.cpus_per_run,
            gpus=engine.gpus_per_run,
        )


def earlier_results(
    configs: Sequence[Config], context: RunContext, retry: bool, console: Console
) -> dict[str, dict[str, Any]]:
    """The results of runs that ended in an earlier sweep; not the failures, with `retry`.

    The result of a run whose files do not agree is set aside: it resumes from its checkpoint. A
    folder of other settings, or with none that can be read, is the user's to move away: what failed
    because of it would be missing from a choice.
    """
    results = {}
    for config in configs:
        folder = context.out / config.name
        if (folder / "config.json").exists():
            check_settings_of(folder, config)
        try:
            result = read_checked(folder, config)
        except UserError as error:
            say(console, f"{message_of(error)}: it is run again")
            with explained(folder):
                os.replace(folder / "result.json", folder / "result.json.damaged")
            continue
        if result is None:
            continue
        if result["status"] != "failed":
            record_failure(config, context, result)
        elif retry:
            continue
        else:
            line = f"{outcome(config, result)} (in an earlier sweep; --retry trains it again)"
            say(console, line)
        results[config.name] = result
    return results


def in_order_of_seeds(configs: Iterable[Config]) -> list[Config]:
    """The first seed of every cell before the second of any, so that a table fills evenly."""
    seen: Counter[Any] = Counter()
    turns: dict[str, tuple[int, Config]] = {}
    for config in configs:
        if config.name not in turns:
            turns[config.name] = (seen[config.cell_key], config)
            seen[config.cell_key] += 1
    return [config for _, config in sorted(turns.values(), key=lambda turn: turn[0])]


def check_data(configs: Iterable[Config], context: RunContext) -> None:
    """Report missing data once, rather than in every run."""
    for config in {(config.task, config.data): config for config in configs}.values():
        config.task_definition.module.check(config, context.data_dir)

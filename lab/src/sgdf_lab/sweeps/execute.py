"""Execute a sweep: several runs at a time, here or on a Ray cluster.

A sweep that is killed, or loses a worker or a node, loses at most the epochs since the last
checkpoints: the same command resumes it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.reading import read_end
from sgdf_lab.runs.results import outcome
from sgdf_lab.runs.session import RunContext
from sgdf_lab.runs.signals import sigterm_as_interrupt
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.sweeps import ENGINES, processes
from sgdf_lab.sweeps.board import board, print_line
from sgdf_lab.sweeps.worker import Notify, Results, attempt, record_failure


def run_all(
    configs: Sequence[Config],
    context: RunContext,
    *,
    jobs: int = 1,
    together: int = 1,
    engine: str = "local",
    address: str | None = None,
    cpus_per_run: float = 1,
    gpus_per_run: float | None = None,
    retry: bool = False,
    console: Console | None = None,
    on_end: Callable[[Config], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train all runs to their end and return their results, in the order of `configs`.

    A failure is a result with the status "failed" and its "error".

    Args:
        configs: the runs.
        context: where and how.
        jobs: worker processes. With one, the runs are trained in this process.
        together: with one job, runs side by side in it.
        engine: "local", or "ray" for a cluster.
        address: of the Ray cluster, HOST:PORT; default: the one on this machine.
        cpus_per_run, gpus_per_run: what Ray reserves for a run.
        retry: train runs again that failed in an earlier sweep.
        console: where progress is shown.
        on_end: called with every run that ends, here and now.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    console = console or Console()
    results = earlier_results(configs, context, retry, console)
    remaining = [config for config in in_order_of_seeds(configs) if config.name not in results]
    with board(configs, results, context, console) as notify, sigterm_as_interrupt():
        if engine == "ray":
            ended = on_cluster(remaining, context, notify, address, cpus_per_run, gpus_per_run)
        else:
            check_data(remaining, context)
            if jobs > 1:
                ended = processes.run_in_processes(remaining, context, jobs, notify)
            else:
                ended = run_here(remaining, context, together, notify)
        try:
            collect(ended, results, notify, on_end)
        except KeyboardInterrupt:
            done = sum(config.name in results for config in configs)
            raise KeyboardInterrupt(
                f"stopped after {done} of {len(configs)} runs; the same command resumes the rest"
            ) from None
    return [results[config.name] for config in configs]


def earlier_results(
    configs: Sequence[Config], context: RunContext, retry: bool, console: Console
) -> dict[str, dict[str, Any]]:
    """The results of runs that ended in an earlier sweep; not the failures, with `retry`."""
    results = {}
    for config in configs:
        result = read_end(context.out / config.name, config)
        if result is None:
            continue
        if result["status"] != "failed":
            record_failure(config, context, result)
        elif retry:
            continue
        else:
            line = f"{outcome(config, result)} (in an earlier sweep; --retry trains it again)"
            print_line(console, line)
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


def run_here(
    configs: Sequence[Config], context: RunContext, together: int, notify: Notify
) -> Results:
    """Train in this process, `together` runs side by side."""
    for start in range(0, len(configs), together):
        group = configs[start : start + together]
        yield from zip(group, attempt(group, context, notify), strict=True)


def on_cluster(
    configs: list[Config],
    context: RunContext,
    notify: Notify,
    address: str | None,
    cpus: float,
    gpus: float | None,
) -> Results:
    try:
        from sgdf_lab.sweeps import cluster
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install "sgdf-lab[cluster]"') from None
    if configs:
        yield from cluster.run_on_cluster(
            configs, context, notify, address=address, cpus=cpus, gpus=gpus
        )


def collect(
    ended: Results,
    results: dict[str, dict[str, Any]],
    notify: Notify,
    on_end: Callable[[Config], None],
) -> None:
    with contextlib.closing(ended):  # on an interrupt, this stops the runs in progress
        for config, result in ended:
            results[config.name] = result
            notify(outcome(config, result))
            on_end(config)

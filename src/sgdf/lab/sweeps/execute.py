"""Execute a sweep: several runs at a time, here or on a Ray cluster.

A sweep that is killed, or loses a worker or a node, loses at most the epochs since the last
checkpoints: the same command resumes it.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import rich.progress
from rich.console import Console

from sgdf.lab.runs.config import Config
from sgdf.lab.runs.disk import read_end
from sgdf.lab.runs.results import outcome
from sgdf.lab.runs.session import RunContext
from sgdf.lab.runs.signals import sigterm_as_interrupt
from sgdf.lab.sweeps import ENGINES, processes
from sgdf.lab.sweeps.worker import Notify, Results, attempt, record_failure
from sgdf.lab.tasks import trainers
from sgdf.support.errors import UserError, unknown
from sgdf.support.files import read_text


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
            collect(ended, results, notify)
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
        trainers.check(config, context.data_dir)


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
        from sgdf.lab.sweeps import cluster
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install "sgdf[cluster]"') from None
    if configs:
        yield from cluster.run_on_cluster(
            configs, context, notify, address=address, cpus=cpus, gpus=gpus
        )


def collect(ended: Results, results: dict[str, dict[str, Any]], notify: Notify) -> None:
    with contextlib.closing(ended):  # on an interrupt, this stops the runs in progress
        for config, result in ended:
            results[config.name] = result
            notify(outcome(config, result))


# --- progress -----------------------------------------------------------------------------------


def print_line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)


@contextlib.contextmanager
def board(
    configs: Sequence[Config], results: Mapping[str, Any], context: RunContext, console: Console
) -> Iterator[Notify]:
    """A bar over all runs, on a terminal; yields a function that prints a line above it."""

    def notify(text: str) -> None:
        print_line(console, text)

    if not console.is_terminal:
        yield notify
        return
    # Steps, if all runs count them; an epoch of the others has many.
    in_steps = all(config.unit == "step" for config in configs)
    unit = "step" if in_steps else "epoch"
    columns = (
        rich.progress.TextColumn("{task.fields[ended]} of " + f"{len(configs)} runs"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.completed:.0f} of {task.total:.0f} " + f"{unit}s"),
        rich.progress.TimeRemainingColumn(),
    )
    stop = threading.Event()

    def follow(display: rich.progress.Progress) -> None:
        def sizes(config: Config) -> int:
            return config.interval if in_steps else 1

        bar = display.add_task("", total=sum(c.epochs * sizes(c) for c in configs), ended=0)
        while True:
            done = sum(epochs_done(c, c.name in results, context) * sizes(c) for c in configs)
            display.update(bar, completed=done, ended=len(results))
            if stop.wait(0.5):
                return

    with rich.progress.Progress(*columns, console=console, transient=True) as display:
        follower = threading.Thread(target=follow, args=(display,), daemon=True)
        follower.start()
        try:
            yield notify
        finally:
            stop.set()
            follower.join()


def epochs_done(config: Config, has_ended: bool, context: RunContext) -> int:
    """Read from the run's folder: its process may be on another machine."""
    if has_ended:
        return config.epochs
    try:
        return read_text(context.out / config.name / "metrics.jsonl").count("\n")
    except (OSError, ValueError):
        return 0

"""The progress of a sweep: a bar over all runs on a terminal, else a line now and then."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import rich.progress
from rich.console import Console

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.progress import duration
from sgdf_lab.runs.session import RunContext
from sgdf_lab.support.files import read_text
from sgdf_lab.sweeps import heartbeat

BAR_INTERVAL = 0.5  # seconds between two looks at the runs' folders, for a bar
LINE_INTERVAL = 30.0  # and for a line


def print_line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)


@contextlib.contextmanager
def board(
    configs: Sequence[Config], results: Mapping[str, Any], context: RunContext, console: Console
) -> Iterator[Callable[[str], None]]:
    """Show how much of all runs is done; yields a function that prints a line beside it."""
    total = Total(configs, results, context)

    def notify(text: str) -> None:
        print_line(console, text)

    try:
        with contextlib.ExitStack() as stack:
            if console.is_terminal:
                stack.enter_context(bar_over(total, console))
            else:
                stack.enter_context(repeated(LineWriter(total, notify).write, LINE_INTERVAL))
            yield notify
    finally:
        for config in configs:  # of runs that were killed
            heartbeat.remove(config, context.out)


class Total:
    """Counts the epochs of all runs: steps, if all runs count them."""

    def __init__(
        self, configs: Sequence[Config], results: Mapping[str, Any], context: RunContext
    ) -> None:
        self.results, self.context = results, context
        self.runs = {config.name: config for config in configs}
        self.in_steps = all(config.unit == "step" for config in configs)
        self.unit = "step" if self.in_steps else "epoch"
        self.size = sum(c.epochs * self.size_of(c) for c in self.runs.values())

    def size_of(self, config: Config) -> int:
        return config.interval if self.in_steps else 1

    def done(self) -> float:
        return sum(self.done_of(name) * self.size_of(c) for name, c in self.runs.items())

    def done_of(self, name: str) -> float:
        """Read from files: the run's process may be on another machine."""
        config, out = self.runs[name], self.context.out
        if name in self.results:
            return config.epochs
        try:
            epochs = read_text(out / name / "metrics.jsonl").count("\n")
        except (OSError, ValueError):
            epochs = 0
        return max(epochs, heartbeat.epochs_told(config, out))

    def words(self, done: float) -> str:
        digits = 0 if self.in_steps or done == round(done) else 1
        return f"{done:.{digits}f} of {self.size} {self.unit}s"


class LineWriter:
    """Writes a line if there is something new to tell."""

    def __init__(self, total: Total, notify: Callable[[str], None]) -> None:
        self.total, self.notify = total, notify
        self.started, self.first = time.monotonic(), total.done()
        self.told = self.first

    def write(self) -> None:
        done, size = self.total.done(), self.total.size
        if done <= self.told or done >= size:
            return
        self.told = done
        left = (time.monotonic() - self.started) / (done - self.first) * (size - done)
        ended = f"{len(self.total.results)} of {len(self.total.runs)} runs ended"
        self.notify(f"{ended}, {self.total.words(done)} done, {duration(left)} left")


@contextlib.contextmanager
def bar_over(total: Total, console: Console) -> Iterator[None]:
    columns = (
        rich.progress.TextColumn("{task.fields[ended]} of " + f"{len(total.runs)} runs"),
        rich.progress.BarColumn(bar_width=20),
        rich.progress.TextColumn("{task.fields[words]}"),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console, transient=True) as display:
        bar = display.add_task("", total=total.size, ended=0, words="")

        def update() -> None:
            done = total.done()
            fields: dict[str, Any] = {"ended": len(total.results), "words": total.words(done)}
            display.update(bar, completed=done, **fields)

        update()
        with repeated(update, BAR_INTERVAL):
            yield


@contextlib.contextmanager
def repeated(work: Callable[[], None], interval: float) -> Iterator[None]:
    """Do something again and again, in a thread."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(interval):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

"""The progress of a sweep: a bar over all runs on a terminal, else a line now and then.

A run's process may be on another machine. All share the folder of the runs: while a run trains, a
small file there, beside the runs, says how many epochs are done. Short runs write none.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.progress
from rich.console import Console

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.progress import MessagesOnly, duration
from sgdf_lab.runs.session import RunContext
from sgdf_lab.support.files import read_text, write_atomically
from sgdf_lab.support.tables import say

BAR_INTERVAL = 0.5  # seconds between two looks at the runs' folders, for a bar
LINE_INTERVAL = 30.0  # and for a line
FILE_INTERVAL = 5.0  # between two writes of a run


@contextlib.contextmanager
def board(
    configs: Sequence[Config], results: Mapping[str, Any], context: RunContext, console: Console
) -> Iterator[Callable[[str], None]]:
    """Show how much of all runs is done; yields a function that prints a line beside it, once.

    What runs say of their data is the same for many of them.
    """
    total, said = Total(configs, results, context), set[str]()

    def notify(text: str) -> None:
        if text not in said:
            said.add(text)
            say(console, text)

    try:
        with contextlib.ExitStack() as stack:
            if console.is_terminal:
                stack.enter_context(bar_over(total, console))
            else:
                stack.enter_context(repeated(LineWriter(total, notify).write, LINE_INTERVAL))
            yield notify
    finally:
        for config in configs:  # of runs that were killed
            remove(config, context.out)


class Total:
    """Counts the epochs of all runs: steps, if all runs count them."""

    def __init__(
        self, configs: Sequence[Config], results: Mapping[str, Any], context: RunContext
    ) -> None:
        self.results, self.context = results, context
        self.runs = {config.name: config for config in configs}
        self.in_steps = all(config.unit == "step" for config in configs)
        self.unit = "step" if self.in_steps else "epoch"
        self.size = sum(map(self.length, self.runs.values()))

    def length(self, config: Config) -> int:
        return config.total if self.in_steps else config.epochs

    def done(self) -> float:
        return sum(self.done_of(n) * self.length(c) / c.epochs for n, c in self.runs.items())

    def done_of(self, name: str) -> float:
        """Read from files: the run's process may be on another machine."""
        config, out = self.runs[name], self.context.out
        if name in self.results:
            return config.epochs
        try:
            epochs = read_text(out / name / "metrics.jsonl").count("\n")
        except (OSError, ValueError):
            epochs = 0
        return max(epochs, epochs_told(config, out))

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


# --- the files of runs in training ---------------------------------------------------------------


class Heartbeat(MessagesOnly):
    """Passes messages on, and keeps the files."""

    def __init__(self, notify: Callable[[str], None], out: Path) -> None:
        super().__init__(notify)
        self.out = out
        self.written: dict[int, float] = {}  # when, by the id of the config

    def step(self, config: Config, done: int, per_epoch: int) -> None:
        now = time.monotonic()
        if now - self.written.setdefault(id(config), now) < FILE_INTERVAL:
            return
        self.written[id(config)] = now
        with contextlib.suppress(OSError):  # it only informs
            write_atomically(file_of(config, self.out), f"{done / per_epoch:.4f}", locked=True)

    def ended(self, config: Config, status: str) -> None:
        remove(config, self.out)


def file_of(config: Config, out: Path) -> Path:
    return out / f".progress-{config.digest[:16]}"


def epochs_told(config: Config, out: Path) -> float:
    """What the file says; 0 if there is none."""
    try:
        return float(read_text(file_of(config, out), limit=100))
    except (OSError, ValueError):
        return 0.0


def remove(config: Config, out: Path) -> None:
    with contextlib.suppress(OSError):
        file_of(config, out).unlink(missing_ok=True)

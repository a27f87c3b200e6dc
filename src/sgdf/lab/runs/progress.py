"""Progress of runs: the interface that `train` calls, and ways to show it.

`train` reports through `Progress` and prints nothing itself. Its caller chooses what to show:
`ProgressBars` on a terminal, `ProgressLines` in a log, `MessagesOnly` in a worker of a sweep.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import rich.progress
from rich.console import Console

from sgdf.lab.runs.config import Config

BAR_INTERVAL = 0.2  # seconds between two updates of a bar
LINE_INTERVAL = 10.0  # seconds between two lines about a run


class Progress(Protocol):
    """What `train` reports. Calls for different runs may alternate."""

    def started(self, config: Config) -> None:
        """The run is about to train, or to resume."""

    def step(self, config: Config, epochs: float) -> None:
        """An optimizer step; so many epochs are done, in fractions."""

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        """An epoch ended, with these metrics."""

    def failed(self, config: Config, error: str) -> None:
        """The run failed while others continue. The failure of a single run is raised instead."""

    def message(self, text: str) -> None:
        """Something a user should read, like a damaged checkpoint."""


class MessagesOnly:
    """Pass messages on and ignore the rest: a sweep shows progress and results itself."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify = notify

    def started(self, config: Config) -> None:
        pass

    def step(self, config: Config, epochs: float) -> None:
        pass

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        pass

    def failed(self, config: Config, error: str) -> None:
        pass

    def message(self, text: str) -> None:
        self.notify(text)


class ProgressLines:
    """Print a line about a run now and then, and always after its last epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.shown: dict[str, float] = {}  # when, by the name of the run
        self.best: dict[str, float] = {}

    def started(self, config: Config) -> None:
        pass

    def step(self, config: Config, epochs: float) -> None:
        pass

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        numbers = self.numbers(config, metrics)
        if self.is_due(config, LINE_INTERVAL) or metrics["epoch"] == config.epochs:
            self.message(f"{config.title}  {numbers}")

    def failed(self, config: Config, error: str) -> None:
        self.message(f"{config.title} failed: {error}")

    def message(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def numbers(self, config: Config, metrics: dict[str, Any]) -> str:
        """The loss, the task's metric and the best value of it so far."""
        metric = config.task_definition.metric
        done, total = (count * config.interval for count in (metrics["epoch"], config.epochs))
        text = f"{config.unit} {done}/{total}  loss {metrics['train_loss']:.3f}"
        value = metrics[metric.key]
        if value is None:  # an expensive metric is not measured after every epoch
            return text
        best = self.best[config.name] = metric.best((value, self.best.get(config.name, value)))
        return f"{text}  {metric.words} {metric.shown(value)}  best {metric.shown(best)}"

    def is_due(self, config: Config, interval: float) -> bool:
        now = time.monotonic()
        if now - self.shown.get(config.name, -interval) <= interval:
            return False
        self.shown[config.name] = now
        return True


class ProgressBars(ProgressLines):
    """Draw a bar for every run."""

    def __init__(self, console: Console, display: rich.progress.Progress) -> None:
        super().__init__(console)
        self.display = display
        self.bars: dict[str, rich.progress.TaskID] = {}

    def started(self, config: Config) -> None:
        bar = self.display.add_task(config.title, total=config.epochs, numbers="")
        self.bars[config.name] = bar

    def step(self, config: Config, epochs: float) -> None:
        if self.is_due(config, BAR_INTERVAL):
            self.display.update(self.bars[config.name], completed=epochs)

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        numbers = self.numbers(config, metrics)
        bar = self.bars[config.name]
        self.display.update(bar, completed=metrics["epoch"], numbers=numbers)


@contextlib.contextmanager
def shown_on(console: Console) -> Iterator[Progress]:
    """Bars on a terminal, lines in a file or pipe."""
    if not console.is_terminal:
        yield ProgressLines(console)
        return
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(bar_width=20),
        rich.progress.TextColumn("{task.fields[numbers]}"),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console) as display:
        yield ProgressBars(console, display)

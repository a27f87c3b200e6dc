"""What runs tell while they train: progress for people, metrics for other programs.

`train` reports through `Progress` and prints nothing itself. Its caller chooses what to show:
`ProgressBars` on a terminal, `ProgressLines` in a log, `MessagesOnly` in a worker of a sweep.

Steps are counted on the host, as they are queued: a GPU is never asked how far it is.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import rich.progress
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sgdf_lab.runs.config import Config
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.tables import say

BAR_INTERVAL = 0.2  # seconds between two updates of a bar
LINE_INTERVAL = 10.0  # seconds between two lines about epochs of a run
STEP_INTERVAL = 30.0  # seconds without any line, after which one tells about steps
FIRST_STEPS = 3.0  # the same until the first: how long a run takes is said at once
BAR_WIDTH = 20


class Progress:
    """What `train` reports; this shows nothing. Calls for different runs may alternate."""

    def started(self, config: Config) -> None:
        """The run is about to train, or to resume."""

    def step(self, config: Config, done: int, per_epoch: int) -> None:
        """An optimizer step was queued: so many of the run are, and an epoch has `per_epoch`."""

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        """An epoch ended, with these metrics."""

    def failed(self, config: Config, error: str) -> None:
        """The run failed while others continue. The failure of a single run is raised instead."""

    def ended(self, config: Config, status: str) -> None:
        """The run ended: finished, diverged, failed, or stopped on request."""

    def message(self, text: str) -> None:
        """Something a user should read, like a damaged checkpoint."""


class MessagesOnly(Progress):
    """Passes messages on: a sweep shows progress and results itself."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify = notify

    def message(self, text: str) -> None:
        self.notify(text)


@dataclass
class Pace:
    """How fast a run is, in this process: steps by the clock of the host."""

    config: Config
    per_epoch: int
    start: tuple[float, int]  # when the first step was done, and its number
    epoch_start: tuple[float, int]  # the same of this epoch: evaluations do not count as slow steps
    shown: float = 0.0  # when steps were last shown
    looked: float = 0.0  # when it was last asked whether to show them

    @property
    def total(self) -> int:
        return self.config.epochs * self.per_epoch

    def words(self, now: float, done: int) -> list[str]:
        """Where the run is, the time left, the rate: the most important first."""
        return [self.where(done), *self.left(now, done), *self.rate(now, done)]

    def where(self, done: int) -> str:
        if self.config.unit == "step":
            return f"step {done}/{self.total}"
        step = (done - 1) % self.per_epoch + 1
        doing = f"step {step}/{self.per_epoch}" if step < self.per_epoch else "evaluating"
        return f"epoch {(done - 1) // self.per_epoch + 1}/{self.config.epochs}, {doing}"

    def left(self, now: float, done: int) -> list[str]:
        """At the pace since the start, with evaluations and checkpoints."""
        (when, first), missing = self.start, self.total - done
        if done <= first or not missing:
            return []
        return [f"{duration((now - when) / (done - first) * missing)} left"]

    def rate(self, now: float, done: int) -> list[str]:
        when, first = self.epoch_start
        if done <= first or now <= when:
            return []
        rate = (done - first) / (now - when)
        if rate < 1:
            return [f"{1 / rate:.3g} s/step"]
        return [f"{rate:.1f} steps/s" if rate < 100 else f"{rate:.0f} steps/s"]


def duration(seconds: float) -> str:
    """
    >>> duration(62.4), duration(7322), duration(200_000)
    ('1:02', '2:02:02', '2 d 7 h')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressLines(Progress):
    """Print a line about a run now and then, and always after its last epoch.

    Within long epochs a line tells how many steps are done. Several runs take turns at it, so that
    a log has two of these lines a minute at most.
    """

    interval = 1.0  # seconds between two looks at the pace of a run

    def __init__(self, console: Console) -> None:
        self.console = console
        self.shown: dict[str, float] = {}  # when, by the name of the run
        self.best: dict[str, float] = {}
        self.paces: dict[int, Pace] = {}  # of the runs in training, by the id of their config
        self.last_line = time.monotonic()
        self.told = False  # whether a line has told how far a run is

    def step(self, config: Config, done: int, per_epoch: int) -> None:
        # Called for every step: no more than a look at the clock and into a table.
        now, pace = time.monotonic(), self.paces.get(id(config))
        if pace is None:
            pace = Pace(config, per_epoch, (now, done), (now, done))
            self.paces[id(config)] = pace
        position = done % per_epoch
        if position == 1:
            pace.epoch_start = now, done
        if now - pace.looked >= self.interval or position == 0:
            pace.looked = now
            self.show_step(pace, now, done)

    def show_step(self, pace: Pace, now: float, done: int) -> None:
        is_turn = pace.shown <= min(other.shown for other in self.paces.values())
        pause = STEP_INTERVAL if self.told else FIRST_STEPS
        if now - self.last_line >= pause and is_turn:
            pace.shown, self.told = now, True
            self.line("  ".join((pace.config.title, *pace.words(now, done))))

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        numbers = self.numbers(config, metrics)
        if self.is_due(config, LINE_INTERVAL) or metrics["epoch"] == config.epochs:
            self.told = True
            self.line(f"{config.title}  {numbers}")

    def failed(self, config: Config, error: str) -> None:
        self.line(f"{config.title} failed: {error}")

    def ended(self, config: Config, status: str) -> None:
        self.paces.pop(id(config), None)

    def message(self, text: str) -> None:
        self.line(text)

    def line(self, text: str) -> None:
        self.last_line = time.monotonic()
        say(self.console, text)

    def numbers(self, config: Config, metrics: dict[str, Any]) -> str:
        """The loss, the task's metric and the best value of it so far."""
        metric = config.task_definition.metric
        place = f"{config.unit} {config.place_of(metrics)}/{config.total}"
        text = f"{place}  loss {metrics['train_loss']:.3f}"
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

    interval = BAR_INTERVAL

    def __init__(self, console: Console, display: rich.progress.Progress) -> None:
        super().__init__(console)
        self.display = display
        self.bars: dict[int, rich.progress.TaskID] = {}  # by the id of the config

    def started(self, config: Config) -> None:
        fields: dict[str, Any] = {"numbers": "", "words": ["starting"]}
        self.bars[id(config)] = self.display.add_task(config.title, total=config.epochs, **fields)

    def show_step(self, pace: Pace, now: float, done: int) -> None:
        pace.shown = now
        bar, words = self.bars[id(pace.config)], pace.words(now, done)
        self.display.update(bar, completed=done / pace.per_epoch, words=words)

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        numbers = self.numbers(config, metrics)
        self.display.update(self.bars[id(config)], completed=metrics["epoch"], numbers=numbers)

    def ended(self, config: Config, status: str) -> None:
        super().ended(config, status)
        bar = self.bars[id(config)]
        self.display.stop_task(bar)
        elapsed = next(task.elapsed for task in self.display.tasks if task.id == bar)
        self.display.update(bar, words=[f"{status} after {duration(elapsed or 0)}"])


class RunDisplay(rich.progress.Progress):
    """A run has one or two lines, and below them a bar. No number is cut: long lines are broken."""

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            yield from run_lines(task, self.console.width)


def run_lines(task: rich.progress.Task, width: int) -> Iterator[RenderableType]:
    title, numbers = task.description, task.fields["numbers"]
    if cell_len(title) + cell_len(numbers) + 2 <= width:
        yield Text(f"{title}  {numbers}".rstrip())
    else:
        yield from (Text(title), Text(f"  {numbers}"))
    words = list(task.fields["words"])
    while len(words) > 1 and cell_len("  ".join(words)) + BAR_WIDTH + 4 > width:
        words.pop()
    bar = ProgressBar(total=task.total, completed=task.completed, width=BAR_WIDTH)
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_row("", bar, Text("  ".join(words)))
    yield line


@contextlib.contextmanager
def shown_on(console: Console) -> Iterator[Progress]:
    """Bars on a terminal, lines in a file or pipe."""
    if not console.is_terminal:
        yield ProgressLines(console)
        return
    with RunDisplay(console=console) as display:
        yield ProgressBars(console, display)


# --- TensorBoard, and Weights & Biases ------------------------------------------------------------


class Tracker(Protocol):
    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        """The metrics of an epoch, or of the steps up to an evaluation."""

    def close(self) -> None:
        """Write what is not written yet."""


def named_values(metrics: dict[str, Any], times: dict[str, Any]) -> dict[str, float]:
    """
    >>> named_values({"epoch": 1, "test_loss": 0.5, "note": None}, {"seconds": 2.0})
    {'test/loss': 0.5, 'seconds': 2.0}
    """
    values = {**metrics, "seconds": times["seconds"]}.items()
    return {name.replace("_", "/", 1): value for name, value in values if isinstance(value, float)}


class EventWriter:
    """TensorBoard: event files in the run's folder; those of steps after `done` are dropped."""

    def __init__(self, folder: Path, config: Config, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError('--tensorboard needs pip install "sgdf-lab[tensorboard]"') from None
        self.config = config
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        for name, value in named_values(metrics, times).items():
            self.writer.add_scalar(name, value, self.config.place_of(metrics))
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbWriter:
    """Weights & Biases: offline, in the run's folder, unless WANDB_MODE says otherwise.

    `wandb sync` sends it later. A run that is resumed writes a part of its own with the same id.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError('--wandb needs pip install "sgdf-lab[wandb]"') from None
        self.config = config
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "sgdf"),
            name=config.name,
            id=config.name,
            resume="allow",
            config=config.as_json(),
            dir=folder,
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            reinit="create_new",  # runs may be trained side by side
            settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True),
        )

    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        self.run.log(named_values(metrics, times), step=self.config.place_of(metrics), commit=True)

    def close(self) -> None:
        self.run.finish()

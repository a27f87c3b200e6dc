"""From settings to finished runs: start or go on, show progress, save, stop when asked."""

import argparse
import contextlib
import math
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sgdf.lab import tasks
from sgdf.lab.tasks import trainers
from sgdf.lab.train import distributed
from sgdf.lab.runs.config import Config, published
from sgdf.support.errors import Held, UserError, unknown
from sgdf.lab.runs.tensorboard import Events
from sgdf.lab.train.distributed import ALONE, Team
from sgdf.lab.runs.disk import Run
from sgdf.lab.train.loop import Trainer, take_turns

LINE_EVERY = 10.0  # seconds between lines where no bar can be drawn


@dataclass(frozen=True)
class Place:
    """Where runs are computed and kept."""

    out: Path
    device: torch.device
    data_dir: Path | None = None
    compile: bool = True
    command: str = ""
    tensorboard: bool = False
    keep: int | None = None  # the weights of every so many epochs


def train(
    wanted: Sequence[Config], place: Place, console: Console | None = None, team: Team = ALONE
) -> list[dict[str, Any]]:
    """Bring the runs to their end, all of them together, and return their results.

    On one GPU several runs share the time well; a CPU is better used by one run after another.
    A run that fails is shown at once, and the others go on.
    """
    console = console or Console(quiet=team.rank > 0)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stop_when_asked(console))
        watch = stack.enter_context(watching(console, wanted))
        sessions = [Session(Run(place.out, c), place, stop, watch, console, team) for c in wanted]
        for session in sessions:
            session.in_company = len(sessions) > 1
        take_turns([session.work() for session in sessions])
    if len(sessions) == 1 and sessions[0].error:
        raise sessions[0].error
    if stop.requested:  # also if these have ended by now: others may be next
        saved = ", ".join(f"{s.saved_epochs} epochs in {s.run.folder}" for s in sessions)
        raise KeyboardInterrupt(f"stopped; saved: {saved}. The same command goes on from there")
    return [session.result for session in sessions]


class Session:
    """A run in this process: from where it stands to its end. Of a team, the first one writes."""

    def __init__(
        self, run: Run, place: Place, stop: "Stop", watch: "Watch", console: Console, team: Team
    ) -> None:
        self.run, self.place, self.stop, self.watch = run, place, stop, watch
        self.console, self.team = console, team
        self.writes = team.rank == 0
        self.saved_epochs = 0
        self.result: dict[str, Any] = {}
        self.error: Exception | None = None
        self.in_company = False

    def work(self) -> Iterator[None]:
        """Step by step, giving control back after each."""
        try:
            if not self._is_finished():
                place = self.place
                trainer = trainers.build(  # mistakes show here, before there is a folder
                    self.run.config,
                    place.device,
                    data_dir=place.data_dir,
                    compile=place.compile,
                    team=self.team,
                )
                held = self.run.open() if self.writes else contextlib.nullcontext()
                with contextlib.closing(trainer), held:
                    yield from self._to_the_end(trainer)
        except Exception as error:
            self.error = error
            self.result = failure(error)
            if self.in_company:  # alone, it is the command that fails
                sentence = f"{title(self.run.config)} failed: {self.result['error']}"
                self.console.print(sentence, soft_wrap=True, markup=False)

    def _is_finished(self) -> bool:
        self.result = self.team.first_says(self.run.result() if self.writes else None) or {}
        self.saved_epochs = self.result.get("epochs", 0)
        return bool(self.result)

    def _to_the_end(self, trainer: Trainer) -> Iterator[None]:
        if self._is_finished():  # by another process, while this one got ready
            return
        config = self.run.config
        for note in trainer.notes:
            self.console.print(note, soft_wrap=True, markup=False)
        self._go_on(trainer)
        events = None
        if self.writes:
            self.run.note_environment(self.place.command, self.place.device)
            if self.place.tensorboard:
                events = Events(self.run.folder, trainer.done)
        if trainer.done == 0:
            self._keep(trainer)
        while trainer.done < config.epochs:
            start = time.perf_counter()
            for i, _ in enumerate(trainer.epoch()):
                if self._may_stop_here(trainer):
                    return  # nothing but this epoch is lost
                self.watch.step(config, trainer.done + (i + 1) / len(trainer.sizes))
                yield
            metrics = trainer.metrics()
            times: dict[str, Any] = {"epoch": trainer.done, "seconds": time.perf_counter() - start}
            if trainer.on_gpu:  # of all runs in this process, which mostly is one
                times["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(trainer.device)
            if not all(math.isfinite(metrics.get(name, 0)) for name in ("train_loss", "test_loss")):
                self._add({**finite(metrics), "diverged": True}, times)
                self._finish("diverged")
                return
            self._add(finite(metrics), times)
            self._show(trainer.pictures())
            self.watch.epoch(config, metrics)
            if events:
                events.add(finite(metrics), times)
            self._keep(trainer)  # before it is saved: what is saved is not trained again
            stopping = self.team.any(self.stop.requested)
            self.stop.requested |= stopping  # by whichever process was asked
            due = self.team.first_says(self.run.save_is_due())
            if trainer.done == config.epochs or stopping or due:
                self._save(trainer)
            if stopping and trainer.done < config.epochs:
                return
        self._finish("finished")

    def _may_stop_here(self, trainer: Trainer) -> bool:
        """In the middle of an epoch; a team has to agree on it first, which it does at the end."""
        return self.stop.requested and self.saved_epochs == trainer.done and self.team.size == 1

    def _add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        if self.writes:
            self.run.add(metrics, times)

    def _show(self, pictures: dict[str, bytes]) -> None:
        if self.writes:
            self.run.show(pictures)

    def _save(self, trainer: Trainer) -> None:
        state = trainer.state_dict()  # for which those that share weights come together
        if self.writes:
            self.run.save(state)
        self.saved_epochs = trainer.done

    def _keep(self, trainer: Trainer) -> None:
        if self.place.keep and trainer.done % self.place.keep == 0:
            state = trainer.state_dict()
            if self.writes:
                self.run.keep({"epoch": trainer.done, "model": state["model"]})

    def _go_on(self, trainer: Trainer) -> None:
        checkpoint = None
        if self.writes:
            checkpoint, complaints = self.run.load(torch.device("cpu"))
            for complaint in complaints:
                instead = "the one before it is used" if checkpoint else "the run starts again"
                self.console.print(f"{complaint}: {instead}", soft_wrap=True, markup=False)
        checkpoint = self.team.first_says(checkpoint)
        if checkpoint is not None:
            trainer.load_state_dict(checkpoint)
            self.saved_epochs = trainer.done

    def _finish(self, status: str) -> None:
        if self.writes:
            self.result = summary(self.run.config, self.run.metrics, self.run.times, status)
            self.run.finish(self.result)
        self.result = self.team.first_says(self.result)


def failure(error: Exception) -> dict[str, Any]:
    """The result of a run that failed; one that another process holds may be tried again."""
    sentence = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    held = {"held": True} if isinstance(error, Held) else {}
    return {"status": "failed", "error": sentence, **held}


def finite(metrics: dict[str, Any]) -> dict[str, Any]:
    """Without the numbers that are none, which JSON does not know."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }


def summary(
    config: Config, metrics: list[dict[str, Any]], times: list[dict[str, Any]], status: str
) -> dict[str, Any]:
    """The end of a run in a few numbers: the best epoch, which papers report, and the last."""
    metric = tasks.find(config.task).metric
    good = [line for line in metrics if not line.get("diverged")]
    known = {line["epoch"]: line[metric.key] for line in good if line[metric.key] is not None}
    best = metric.best(known.values()) if known else None
    return {
        "status": status,
        "epochs": metrics[-1]["epoch"],
        f"best_{metric.key}": best,
        "best_epoch": next((epoch for epoch, value in known.items() if value == best), None),
        f"final_{metric.key}": good[-1][metric.key] if good else None,
        "seconds": sum(line["seconds"] for line in times),
    }


# --- progress and interruption ------------------------------------------------------------------


class Stop:
    requested = False


@contextlib.contextmanager
def stop_when_asked(console: Console) -> Iterator[Stop]:
    """Ctrl-C, or a polite kill, stops after what it takes to save; a second one stops at once."""
    stop = Stop()

    def ask(signum: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        with contextlib.suppress(RuntimeError):  # if this came in the middle of another print
            console.print("stopping: once more stops without saving")

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread is told of signals
        yield stop
        return
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


class Watch:
    """Tells how the runs are doing: a bar each, or now and then a line."""

    def __init__(self, console: Console, progress: Progress | None, wanted: Sequence[Config]):
        self.console, self.progress = console, progress
        self.bars = {}
        self.shown = dict.fromkeys((c.name for c in wanted), 0.0)
        self.best: dict[str, float] = {}
        if progress:
            for c in wanted:
                self.bars[c.name] = progress.add_task(title(c), total=c.epochs, numbers="")

    def step(self, config: Config, epochs: float) -> None:
        now = time.monotonic()
        if self.progress and now - self.shown[config.name] > 0.2:
            self.shown[config.name] = now
            self.progress.update(self.bars[config.name], completed=epochs)

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        metric = tasks.find(config.task).metric
        numbers = f"epoch {metrics['epoch']}/{config.epochs}  loss {metrics['train_loss']:.3f}"
        value = metrics[metric.key]
        if value is not None:  # an expensive one is not measured after every epoch
            best = self.best[config.name] = metric.best((value, self.best.get(config.name, value)))
            numbers += f"  {metric.words} {value:.2f}  best {best:.2f}"
        now = time.monotonic()
        if self.progress:
            bar = self.bars[config.name]
            self.progress.update(bar, completed=metrics["epoch"], numbers=numbers)
        elif now - self.shown[config.name] > LINE_EVERY or metrics["epoch"] == config.epochs:
            self.shown[config.name] = now
            self.console.print(f"{title(config)}  {numbers}", soft_wrap=True)


@contextlib.contextmanager
def watching(console: Console, wanted: Sequence[Config]) -> Iterator[Watch]:
    if not console.is_terminal:
        yield Watch(console, None, wanted)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Watch(console, progress, wanted)


def title(config: Config) -> str:
    return f"{config.task} {config.model} {config.optimizer} lr {config.lr:g} seed {config.seed}"






def find_device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown("device", name, ("cpu", "cuda")) from None
    if device.type not in ("cpu", "cuda"):
        raise unknown("device", name, ("cpu", "cuda"))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"there is no device {name} here: try --device cpu")
    return device




def outcome(config: Config, result: dict[str, Any]) -> str:
    if result["status"] == "failed":
        return f"{title(config)}: failed: {result['error']}"
    if result["status"] == "diverged":
        return f"{title(config)}: diverged in epoch {result['epochs']}"
    value, metric = published(config), tasks.find(config.task).metric
    beside = f" (published {value.mean:.2f})" if value else ""
    return (
        f"{title(config)}: best {metric.words} {result[f'best_{metric.key}']:.2f}{beside} in "
        f"epoch {result['best_epoch']}, final {result[f'final_{metric.key}']:.2f}, "
        f"{result['seconds']:.0f} s"
    )

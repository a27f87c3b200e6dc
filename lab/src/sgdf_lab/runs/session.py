"""Train runs in this process: resume, checkpoint, stop in an orderly way, write the result."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.progress import (
    EventWriter,
    Progress,
    Tracker,
    WandbWriter,
    duration,
    shown_on,
)
from sgdf_lab.runs.results import failure_from, summary_of
from sgdf_lab.runs.run_folder import RunFolder
from sgdf_lab.support.errors import UserError
from sgdf_lab.training.checkpoints import DamagedCheckpoint
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.loop import Trainer, take_turns


@dataclass(frozen=True)
class RunContext:
    """Where and how runs are computed and kept. Nothing here is part of a run's settings."""

    out: Path
    device: torch.device
    data_dir: Path | None = None
    compile: bool = True
    command: str = ""
    tensorboard: bool = False
    wandb: bool = False
    keep: int | None = None  # keep the weights of every Nth epoch
    checkpoints: bool = True  # to resume from


def train_in_turn(
    configs: Sequence[Config], context: RunContext, team: Team = SINGLE_PROCESS
) -> list[dict[str, Any]]:
    """Train the runs one after another; on a GPU, which has room for several, side by side."""
    has_room = context.device.type == "cuda" and team.size == 1
    groups = [configs] if has_room else [[config] for config in configs]
    return [r for group in groups for r in train(group, context, team=team)]


def train(
    configs: Sequence[Config],
    context: RunContext,
    progress: Progress | None = None,
    team: Team = SINGLE_PROCESS,
) -> list[dict[str, Any]]:
    """Train the runs side by side to their end, and return their results.

    A single run that fails raises; of several, a failed one has a result that says so.

    Args:
        configs: the runs.
        context: where and how.
        progress: what to report to; default: bars or lines on standard output.
        team: the processes that share the runs.
    """
    with contextlib.ExitStack() as stack:
        if progress is None:
            progress = stack.enter_context(shown_on(Console(quiet=team.rank > 0)))
        stop = stack.enter_context(stop_on_signal(progress.message))
        alone = len(configs) == 1
        sessions = [Session(c, context, progress, stop, team, alone=alone) for c in configs]
        take_turns([session.work() for session in sessions])
    if stop.requested:  # also if all of these ended: the caller must not start others
        saved = ", ".join(f"{s.saved} in {s.run.folder}" for s in sessions)
        raise KeyboardInterrupt(f"stopped; saved: {saved}. The same command resumes from there")
    return [session.result for session in sessions]


# --- one run -------------------------------------------------------------------------------------


class Session:
    """A run in this process, from its last checkpoint to its end. Rank 0 of a team writes."""

    def __init__(
        self,
        config: Config,
        context: RunContext,
        progress: Progress,
        stop: "StopRequest",
        team: Team,
        *,
        alone: bool,
    ) -> None:
        self.config, self.context, self.progress = config, context, progress
        self.stop, self.team, self.alone = stop, team, alone
        self.run = RunFolder(context.out, config)
        self.writes = team.rank == 0
        self.saved_epochs = 0
        self.result: dict[str, Any] = {}
        self.trackers: list[Tracker] = []

    @property
    def saved(self) -> str:
        return self.config.counted(self.saved_epochs)

    def work(self) -> Iterator[None]:
        """Train, yielding after every step so that other runs take turns."""
        started = False
        try:
            if not self._is_finished():
                self.progress.started(self.config)
                started = True
                context = self.context
                # Before the folder, so that a mistake leaves none.
                trainer: Trainer = self.config.task_definition.module.build_trainer(
                    self.config,
                    context.device,
                    data_dir=context.data_dir,
                    compile=context.compile,
                    team=self.team,
                )
                lock = self.run.open() if self.writes else contextlib.nullcontext()
                with contextlib.closing(trainer), lock:
                    if not self._is_finished():  # by another process, meanwhile
                        yield from self._train(trainer)
        except (Exception, SystemExit) as error:  # a user's optimizer may exit
            if self.alone:
                raise
            self.result = failure_from(error)
            self.progress.failed(self.config, self.result["error"])
        finally:
            for tracker in self.trackers:
                tracker.close()
            if started:
                self.progress.ended(self.config, self.result.get("status", "stopped"))

    def _is_finished(self) -> bool:
        self.result = self.team.broadcast_object(self.run.result() if self.writes else None) or {}
        self.saved_epochs = self.result.get("epochs", 0)
        return bool(self.result)

    def _train(self, trainer: Trainer) -> Iterator[None]:
        for note in trainer.notes:
            self.progress.message(note)
        if self.writes and hasattr(trainer.batches, "fingerprint"):  # a user's task may have none
            self.run.data = trainer.batches.fingerprint()
        self._resume(trainer)
        self._begin(trainer)
        while trainer.evaluations < self.config.epochs:
            start = time.perf_counter()
            if not (yield from self._steps(trainer)):
                return
            metrics = trainer.metrics()
            times: dict[str, Any] = {
                "epoch": trainer.evaluations,
                "seconds": time.perf_counter() - start,
            }
            if trainer.on_gpu:  # of all runs in this process, usually one
                times["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(trainer.device)
            if has_diverged(metrics):
                self._add({**json_safe(metrics), "diverged": True}, times)
                self._finish("diverged")
                return
            self._add(json_safe(metrics), times)
            pictures = trainer.pictures()
            if self.writes:
                self.run.show(pictures)
            self.progress.epoch(self.config, metrics)
            for tracker in self.trackers:
                tracker.add(json_safe(metrics), times)
            if self._save_or_stop(trainer):
                return
        self._finish("finished")

    def _begin(self, trainer: Trainer) -> None:
        if self.writes:
            self.run.note_environment(self.context.command, self.context.device)
            if self.context.tensorboard:
                done = self.config.at(trainer.evaluations)
                self.trackers.append(EventWriter(self.run.folder, self.config, done))
            if self.context.wandb:
                self.trackers.append(WandbWriter(self.run.folder, self.config))
        if trainer.evaluations == 0:
            self._keep(trainer)

    def _steps(self, trainer: Trainer) -> Generator[None, None, bool]:
        """Train an epoch; false if it was left because of a request to stop."""
        per_epoch = len(trainer.sizes)
        for done, _ in enumerate(trainer.epoch(), trainer.evaluations * per_epoch + 1):
            if self._may_stop_here(trainer):
                return False
            self.progress.step(self.config, done, per_epoch)
            yield
        return True

    def _may_stop_here(self, trainer: Trainer) -> bool:
        """Within an epoch, if nothing is left to save. A team agrees after the epoch only."""
        saved = self.saved_epochs == trainer.evaluations or not self.context.checkpoints
        return self.stop.requested and saved and self.team.size == 1

    def _save_or_stop(self, trainer: Trainer) -> bool:
        """After an epoch: save if it is due; true if the run stops here."""
        self._keep(trainer)  # before the checkpoint: saved epochs are not trained again
        stopping = self.team.any(self.stop.requested)
        self.stop.requested |= stopping  # whichever process of the team got the signal
        due = self.team.broadcast_object(self.run.save_is_due())
        is_last = trainer.evaluations == self.config.epochs
        if self.context.checkpoints and (is_last or stopping or due):
            self._save(trainer)
        return stopping and not is_last

    def _add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        if self.writes:
            self.run.add(metrics, times)

    def _save(self, trainer: Trainer) -> None:
        state = trainer.state_dict()  # collective: every process of a team calls it
        if self.writes:
            try:
                trainer.check_state_dict(state)
            except DamagedCheckpoint as error:
                raise UserError(f"the run's state cannot be restored: {error}") from None
            self.run.save(state)
        self.saved_epochs = trainer.evaluations

    def _keep(self, trainer: Trainer) -> None:
        if self.context.keep and trainer.evaluations % self.context.keep == 0:
            state = trainer.state_dict()
            if self.writes:
                self.run.keep({"epoch": trainer.evaluations, "model": state["model"]})

    def _resume(self, trainer: Trainer) -> None:
        checkpoint = None
        if self.writes:
            checkpoint, complaints = self.run.load(torch.device("cpu"), trainer.check_state_dict)
            for complaint in complaints:
                instead = "the one before it is used" if checkpoint else "the run starts again"
                self.progress.message(f"{complaint}: {instead}")
        checkpoint = self.team.broadcast_object(checkpoint)
        if checkpoint is not None:
            trainer.load_state_dict(checkpoint)
            self.saved_epochs = trainer.evaluations

    def _finish(self, status: str) -> None:
        if self.writes:
            self.result = summary_of(self.config, self.run.metrics, self.run.times, status)
            self.run.finish(self.result)
        self.result = self.team.broadcast_object(self.result)


def has_diverged(metrics: dict[str, Any]) -> bool:
    """Whether a loss is not finite."""
    losses = (metrics.get(name, 0) for name in ("train_loss", "test_loss", "val_loss"))
    return not all(map(math.isfinite, losses))


def json_safe(metrics: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinity by None: JSON has neither."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }


# --- Ctrl-C and SIGTERM --------------------------------------------------------------------------


Handler = Callable[[int, FrameType | None], None]


class StopRequest:
    """Becomes true once the process was asked to stop."""

    requested = False


@contextlib.contextmanager
def stop_on_signal(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second one raises KeyboardInterrupt."""
    stop = StopRequest()

    def handle(signum: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        with contextlib.suppress(RuntimeError):  # the signal may interrupt another print
            notify("stopping: once more stops without saving")

    with handling((signal.SIGINT, signal.SIGTERM), handle):
        yield stop


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handling((signal.SIGTERM,), interrupt):
        yield


@contextlib.contextmanager
def handling(signals: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Install a handler for the block. Only the main thread can: elsewhere this does nothing."""
    try:
        before = {number: signal.signal(number, handler) for number in signals}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# --- how long it will take ------------------------------------------------------------------------

TIMED_STEPS = 20  # of a run
TIMED_SECONDS = 2.0  # that they may take
FORWARD = 1 / 3  # of the time of a step: backward takes twice as long
WORTH_SAYING = 10.0  # seconds of all runs


def seconds_of_run(config: Config, context: RunContext) -> float:
    """About how long a run takes on this CPU, by its first steps.

    They are steps of a trainer that is thrown away: the run itself begins as it always does.
    """
    with torch.random.fork_rng(devices=[]):
        trainer = config.task_definition.module.build_trainer(
            config, context.device, data_dir=context.data_dir, compile=False
        )
        with contextlib.closing(trainer), contextlib.closing(trainer.epoch()) as steps:
            times = [time.monotonic()]
            for _ in steps:
                times.append(time.monotonic())
                is_long = times[-1] - times[0] > TIMED_SECONDS and len(times) > 2
                if is_long or len(times) > TIMED_STEPS + 1:
                    break
    timed = times[1:] if len(times) > 2 else times  # the first step also warms up
    per_step = (timed[-1] - timed[0]) / (len(timed) - 1)
    evaluation = FORWARD * trainer.evaluated() / config.batch  # in steps
    return per_step * (len(trainer.sizes) + evaluation) * config.epochs


def time_in_words(configs: Sequence[Config], context: RunContext) -> str:
    """About how long runs of one kind take on this CPU; nothing where it is soon over.

    Nor where one fails: training itself tells what is wrong with it.
    """
    try:
        left = [c for c in configs if RunFolder(context.out, c).result() is None]
        if not left:
            return ""
        each = f" for each of {len(left)} runs" if len(left) > 1 else ""
        seconds = seconds_of_run(left[0], context)
    except (Exception, SystemExit):  # a user's optimizer or data
        return ""
    if seconds * len(left) < WORTH_SAYING:
        return ""
    return f"About {duration(seconds)} on {context.device}{each}, at the pace of the first steps"

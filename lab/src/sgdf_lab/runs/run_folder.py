"""A run on disk: one folder, valid at whatever instant its process is killed.

    config.json    the settings: all that decides the numbers
    env.json       command, commit, versions, machine and a hash of the training data, of this start
                   and of earlier ones
    metrics.jsonl  one line per epoch: the metrics, the same however often the run was interrupted
    times.jsonl    one line per epoch: the seconds, which differ from run to run
    last.pt        the checkpoint, with a copy of the lines above; previous.pt the one before it
    result.json    written once, at the end; failure.json the reason if a run of a sweep failed
    kept/          with --keep, the weights after some epochs: 8.pt after the eighth
    pictures/      pictures of the last epoch, for tasks that draw some

The checkpoint is authoritative: on a restart both lists are cut back to it. It is written to a
temporary file and renamed, so that a complete checkpoint exists at every instant. It says which run
wrote it, and what it has to contain; a run resumes only from its own, whole checkpoints.
"""

import contextlib
import fcntl
import json
import os
import pickle
import re
import secrets
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sgdf import __version__
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.results import (
    ForeignRun,
    as_line,
    check_settings_of,
    read_checked,
    read_result,
)
from sgdf_lab.support.errors import Held, UserError
from sgdf_lab.support.files import (
    create,
    explained,
    open_lock,
    open_regular,
    read_text,
    removed_on_failure,
    sync_folder,
    write_atomically,
)
from sgdf_lab.support.numbers import is_number
from sgdf_lab.support.provenance import commit, machine
from sgdf_lab.training.checkpoints import DamagedCheckpoint, check_layout, layout, unloadable

SAVING_SHARE = 0.02  # the largest part of the time that checkpoints may take
LISTS = ("metrics", "times")  # in a checkpoint: a line for every epoch
LOCKS: set[int] = set()  # file descriptors of the locks that this process holds


def close_locks() -> None:
    """In a forked child, which would keep the lock if the parent dies."""
    for lock in LOCKS:
        os.close(lock)
    LOCKS.clear()


os.register_at_fork(after_in_child=close_locks)


class RunFolder:
    """The folder of one run, locked by this process while `open`."""

    def __init__(self, out: Path, config: Config) -> None:
        self.config = config
        self.folder = out / config.name
        self.metrics: list[dict[str, Any]] = []
        self.times: list[dict[str, Any]] = []
        self.earlier: list[dict[str, Any]] = []  # environments of earlier starts
        self.data = ""  # what identifies the data, for checkpoints
        self.can_be_read_back = False  # the first checkpoint was
        self.saved_at = 0.0
        self.saving_took = 0.0

    # --- the lock -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Lock the folder; the lock ends with the process, however it ends."""
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = open_lock(self.folder / "lock")
        LOCKS.add(lock)
        try:
            with explained(self.folder):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.read(lock, 200).decode(errors="replace") or "another process"
                    raise Held(f"{self.folder} is being written by {holder}") from None
                os.ftruncate(lock, 0)
                os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
                self._check_config()
            yield
        finally:
            LOCKS.discard(lock)
            os.close(lock)

    def _check_config(self) -> None:
        path = self.folder / "config.json"
        if not path.exists():
            write_atomically(path, as_line(self.config.as_json(), indent=2), locked=True)
            return
        check_settings_of(self.folder, self.config)

    # --- reading back ---------------------------------------------------------------------------

    def result(self) -> dict[str, Any] | None:
        """The result, if the run has ended; a `UserError` if its files do not agree."""
        result = read_result(self.folder, self.config)
        if result is None:
            return None
        try:
            return read_checked(self.folder, self.config)
        except ForeignRun:
            raise
        except UserError as error:
            again = f"remove {self.folder / 'result.json'} and run the same command again"
            raise UserError(f"{error}; {again}") from None

    def load(
        self, device: torch.device, check: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest intact checkpoint, if any, and a complaint about every other one.

        Metrics and times are cut back to it. A checkpoint that is damaged or another run's is
        renamed, so that it never replaces an intact one. `check` may raise `DamagedCheckpoint`.
        """
        complaints = []
        checkpoint = None
        for path in (self.folder / "last.pt", self.folder / "previous.pt"):
            if not path.exists():
                continue
            try:
                read = read_checkpoint(path, device)
                check_owner(read, self.config, self.data)
                check_contents(read, self.config)
                check(read)
                checkpoint = read
                break
            except DamagedCheckpoint as error:
                kept = self._set_aside(path, "damaged")
                complaints.append(f"{path} is damaged ({error}), kept as {kept}")
            except ForeignCheckpoint as error:
                kept = self._set_aside(path, "foreign")
                complaints.append(f"{path} {error}, kept as {kept}")
        if checkpoint is not None:
            self.metrics, self.times = checkpoint.pop("metrics"), checkpoint.pop("times")
        with explained(self.folder):
            self._write_lists()
        return checkpoint, complaints

    def _set_aside(self, path: Path, why: str) -> str:
        """Rename it, in place of an earlier one if that is possible, and return the name."""
        aside = path.with_name(f"{path.name}.{why}")
        if aside.exists() and (is_folder(path) or is_folder(aside)):
            aside = path.with_name(f"{path.name}.{why}-{secrets.token_hex(4)}")
        with explained(self.folder):
            os.replace(path, aside)
        return aside.name

    def _write_lists(self) -> None:
        for name, lines in (("metrics.jsonl", self.metrics), ("times.jsonl", self.times)):
            if is_folder(self.folder / name):
                self._set_aside(self.folder / name, "damaged")
            write_atomically(self.folder / name, "".join(map(as_line, lines)), locked=True)

    # --- writing --------------------------------------------------------------------------------

    def note_environment(self, command: str, device: torch.device) -> None:
        """Record command, code and machine of this start, its first epoch, and earlier starts."""
        path = self.folder / "env.json"
        with contextlib.suppress(
            OSError, ValueError, RecursionError, TypeError, LookupError, AttributeError
        ):
            before = json.loads(read_text(path))
            self.earlier = [*before.pop("earlier"), before]
        now = {
            "command": command,
            "commit": commit(),
            "sgdf": __version__,
            "machine": machine(device.type),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "data": self.data,
            "from_epoch": len(self.metrics),
            "earlier": self.earlier,
        }
        with explained(self.folder):
            write_atomically(path, as_line(now, indent=2), locked=True)

    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        """Append the lines of an epoch."""
        self.metrics.append(metrics)
        self.times.append(times)
        for name, line in (("metrics.jsonl", metrics), ("times.jsonl", times)):
            with explained(self.folder), open(self.folder / name, "a", encoding="utf-8") as file:
                file.write(as_line(line))

    def show(self, pictures: dict[str, bytes]) -> None:
        """Write pictures by their file names; they replace those of earlier epochs."""
        folder = self.folder / "pictures"
        with explained(self.folder):
            for name, content in pictures.items():
                folder.mkdir(exist_ok=True)
                write_atomically(folder / name, content, locked=True)

    def save_is_due(self) -> bool:
        """Whether saving now keeps its cost within SAVING_SHARE of the time."""
        return time.monotonic() - self.saved_at >= self.saving_took / SAVING_SHARE

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Replace last.pt, which becomes previous.pt. The first one is read back."""
        start = time.monotonic()
        last, new = self.folder / "last.pt", self.folder / "last.pt.new"
        previous = self.folder / "previous.pt"
        with explained(self.folder), removed_on_failure(new):
            self._write({**checkpoint, "layout": layout(checkpoint)}, new)
            if not self.can_be_read_back:
                check_loadable(new, checkpoint)
                self.can_be_read_back = True
            if is_folder(previous):
                self._set_aside(previous, "damaged")
            if last.exists():
                os.replace(last, previous)
            os.replace(new, last)
            sync_folder(self.folder)
        self.saved_at = time.monotonic()
        self.saving_took = self.saved_at - start

    def keep(self, checkpoint: dict[str, Any]) -> None:
        """Keep the weights of this epoch, for later analysis."""
        path = kept_path(self.folder, checkpoint["epoch"])
        new = path.with_name(path.name + ".new")
        with explained(self.folder), removed_on_failure(new):
            path.parent.mkdir(exist_ok=True)
            self._write(checkpoint, new)
            os.replace(new, path)
            sync_folder(path.parent)

    def _write(self, checkpoint: dict[str, Any], path: Path) -> None:
        lists = {"metrics": self.metrics, "times": self.times}
        whole = {**checkpoint, "run": owner(self.config, self.data), **lists}
        with create(path) as file:
            try:
                torch.save(whole, file)
            except (pickle.PicklingError, AttributeError, TypeError):
                explain_unloadable(checkpoint)
                raise
            file.flush()
            os.fsync(file.fileno())

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, and remove previous.pt, which is no longer needed.

        `add` does not flush to the disk, so both lists are first written again, with a flush.
        """
        with explained(self.folder):
            self._write_lists()
            write_atomically(self.folder / "result.json", as_line(result, indent=2), locked=True)
            (self.folder / "previous.pt").unlink(missing_ok=True)


# --- whose a checkpoint is ------------------------------------------------------------------------


class ForeignCheckpoint(Exception):
    """A checkpoint that another run wrote."""


def owner(config: Config, data: str) -> dict[str, str]:
    """What a checkpoint says about its run; `data` is empty if nothing identifies the data."""
    return {"name": config.name, "config": config.digest, "data": data}


def check_owner(checkpoint: Mapping[str, Any], config: Config, data: str) -> None:
    """Raise `ForeignCheckpoint` if another run wrote it."""
    wrote, own = checkpoint.get("run"), owner(config, data)
    if not isinstance(wrote, Mapping) or not all(isinstance(wrote.get(key), str) for key in own):
        raise DamagedCheckpoint("it does not say which run wrote it")
    if wrote["name"] != own["name"]:
        is_name = re.fullmatch(r"[\w.-]{1,255}", wrote["name"])
        whose = f"run {wrote['name']}" if is_name else "another run"
        raise ForeignCheckpoint(f"belongs to {whose}")
    if wrote["config"] != own["config"]:
        raise ForeignCheckpoint("belongs to a run with other settings")
    if wrote["data"] and data and wrote["data"] != data:
        raise ForeignCheckpoint("belongs to a run on other data")


def check_contents(checkpoint: Mapping[str, Any], config: Config) -> None:
    """Raise `DamagedCheckpoint` unless its lists are those of its epoch, and nothing is missing."""
    state = {k: v for k, v in checkpoint.items() if k not in ("run", "layout", *LISTS)}
    check_layout(state, checkpoint.get("layout"))
    for name in LISTS:
        if not isinstance(checkpoint[name], list) or len(checkpoint[name]) != checkpoint["epoch"]:
            raise DamagedCheckpoint(f"its {name} are not those of {checkpoint['epoch']} epochs")
    metric = config.task_definition.metric
    lines = zip(checkpoint["metrics"], checkpoint["times"], strict=True)
    for epoch, (metrics, times) in enumerate(lines, start=1):
        if not is_line(metrics, epoch) or not is_line(times, epoch):
            raise DamagedCheckpoint(f"its lines of epoch {epoch} are damaged")
        if metric.key not in metrics or times.get("seconds") is None:
            raise DamagedCheckpoint(f"its lines of epoch {epoch} are not those of this task")


def is_line(line: Any, epoch: int) -> bool:
    """Whether it has the results of an epoch: numbers, truth values or nothing, by name."""
    return (
        isinstance(line, dict)
        and line.get("epoch") == epoch
        and all(v is None or isinstance(v, bool) or is_number(v) for v in line.values())
    )


# --- reading -------------------------------------------------------------------------------------


def check_loadable(path: Path, checkpoint: dict[str, Any]) -> None:
    """Read back what was written; a `UserError` says what cannot be restored."""
    # torch maps a file only by its path, which has to be valid UTF-8; else all of it is read.
    mmap = str(path).encode(errors="ignore") == os.fsencode(path)
    try:
        with open_regular(path) as file:
            source = path if mmap else file
            read = torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError:
        explain_unloadable(checkpoint)
        raise
    try:
        check_layout({name: read[name] for name in checkpoint}, read["layout"])
    except DamagedCheckpoint as error:
        raise UserError(f"the run's state cannot be restored: {error}") from None


def explain_unloadable(checkpoint: dict[str, Any]) -> None:
    """Raise a `UserError` that names the first entry that cannot be restored, if there is one."""
    for name, state in checkpoint.items():
        if phrase := unloadable(state):
            whose = "model" if name == "model" else "optimizer"
            raise UserError(f"the {whose}'s state cannot be restored: {phrase}")


def is_folder(path: Path) -> bool:
    """Whether it is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def kept_path(folder: Path, epoch: int) -> Path:
    return folder / "kept" / f"{epoch}.pt"


def kept_epochs(folder: Path) -> list[int]:
    """The epochs whose weights were kept."""
    stems = (path.stem for path in (folder / "kept").glob("*.pt"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def find_checkpoint(folder: Path, epoch: int | None = None) -> Path:
    """The path of the last checkpoint, or of the weights kept after an epoch."""
    path = folder / "last.pt" if epoch is None else kept_path(folder, epoch)
    if path.exists():
        return path
    if epoch is None:
        if (folder / "result.json").exists():
            raise UserError(
                f"{folder} has no checkpoint: it was trained with --no-checkpoints, or its record "
                "was unpacked; train it again into another folder, with --out"
            )
        raise UserError(f"{folder} has no checkpoint yet: train the run first")
    there = ", ".join(map(str, kept_epochs(folder)))
    instead = f"it has those of {there}" if there else "train with --keep N"
    raise UserError(f"{folder} has not kept the weights of epoch {epoch}: {instead}")


def require_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint that has no substitute; damage is the user's to repair."""
    try:
        return read_checkpoint(path, device)
    except DamagedCheckpoint as error:
        raise UserError(f"{path} is damaged ({error}): train the run again") from None


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint and verify its checksums, which `torch.load` does not."""
    try:
        with open_regular(path) as file:
            with zipfile.ZipFile(file) as archive:
                part = archive.testzip()
            if part is not None:
                raise DamagedCheckpoint(f"the checksum of its part {part} is wrong")
            file.seek(0)
            checkpoint = torch.load(file, map_location=device, weights_only=True)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except DamagedCheckpoint:
        raise
    except Exception as error:  # a reader of arbitrary bytes may raise anything
        raise DamagedCheckpoint(str(error).partition("\n")[0]) from None
    if not isinstance(checkpoint, dict) or not {"epoch", "model", *LISTS} <= checkpoint.keys():
        raise DamagedCheckpoint("it is not the checkpoint of a run")
    if type(checkpoint["epoch"]) is not int or not isinstance(checkpoint["model"], dict):
        raise DamagedCheckpoint("it is not the checkpoint of an epoch")
    return checkpoint

"""A run on disk: one folder that survives whatever happens to the process that writes it.

    config.json    the settings: all that decides the numbers
    env.json       command, commit, versions and machine, of this start and of those before
    metrics.jsonl  a line an epoch: the numbers, the same however often the run was interrupted
    times.jsonl    a line an epoch: the seconds, which never are the same
    last.pt        the checkpoint, with a copy of the lines above; previous.pt the one before it
    result.json    written once, at the end; failure.json the reason if a sweep's run failed
    kept/          if asked for, the weights after some epochs: 8.pt those after the eighth
    pictures/      what the trainer draws, for the tasks that have something to look at

The checkpoint is the truth: starting again cuts the two lists back to what it holds. It is
written beside and renamed, so that at every instant one whole checkpoint is there.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sgdf.support.files import explained, removed_on_failure, sync_folder, write_atomically
from sgdf import __version__
from sgdf.lab.runs.config import Config
from sgdf.support.errors import Held, UserError
from sgdf.support.provenance import commit, machine

SAVING_SHARE = 0.02  # of the time, at most, goes into checkpoints
LOCKS: set[int] = set()  # of the folders that this process holds


def let_go() -> None:
    """A forked process, like one that decodes images, must not hold a folder when this one dies."""
    for lock in LOCKS:
        os.close(lock)
    LOCKS.clear()


os.register_at_fork(after_in_child=let_go)


class Run:
    """The folder of one run, held by this process alone while `open`."""

    def __init__(self, out: Path, config: Config) -> None:
        self.config = config
        self.folder = out / config.name
        self.metrics: list[dict[str, Any]] = []
        self.times: list[dict[str, Any]] = []
        self.earlier: list[dict[str, Any]] = []  # starts
        self.saved_at = 0.0
        self.saving_took = 0.0

    # --- one writer -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Hold the folder: no other process can, and a killed one lets go of it."""
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
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
        if read_config(self.folder).as_json() != self.config.as_json():
            raise UserError(f"{path} has other settings than this run: move the folder away")

    # --- what is here already -------------------------------------------------------------------

    def result(self) -> dict[str, Any] | None:
        """How the run ended, if it did."""
        return read_result(self.folder)

    def load(self, device: torch.device) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest whole checkpoint, if there is one, and what was wrong with those that are not.

        The lists of metrics and times are cut back to it. A damaged one is set aside, so that it
        never takes the place of a whole one.
        """
        complaints = []
        checkpoint = None
        for path in (self.folder / "last.pt", self.folder / "previous.pt"):
            if not path.exists():
                continue
            try:
                checkpoint = read_checkpoint(path, device)
                break
            except Damaged as error:
                aside = path.with_name(path.name + ".damaged")
                complaints.append(f"{path} is damaged ({error}), kept as {aside.name}")
                with explained(self.folder):
                    os.replace(path, aside)
        if checkpoint is not None:
            self.metrics, self.times = checkpoint.pop("metrics"), checkpoint.pop("times")
        with explained(self.folder):
            self._write_lists()
        return checkpoint, complaints

    def _write_lists(self) -> None:
        for name, lines in (("metrics.jsonl", self.metrics), ("times.jsonl", self.times)):
            write_atomically(self.folder / name, "".join(map(as_line, lines)), locked=True)

    # --- what is new ----------------------------------------------------------------------------

    def note_environment(self, command: str, device: torch.device) -> None:
        """Who goes on with this run, where, and from which epoch; and who did before."""
        path = self.folder / "env.json"
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
            before = json.loads(path.read_text(encoding="utf-8"))
            self.earlier = [*before.pop("earlier"), before]
        now = {
            "command": command,
            "commit": commit(),
            "sgdf": __version__,
            "machine": machine(device.type),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "from_epoch": len(self.metrics),
            "earlier": self.earlier,
        }
        with explained(self.folder):
            write_atomically(path, as_line(now, indent=2), locked=True)

    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        """Note an epoch's numbers."""
        self.metrics.append(metrics)
        self.times.append(times)
        for name, line in (("metrics.jsonl", metrics), ("times.jsonl", times)):
            with explained(self.folder), open(self.folder / name, "a", encoding="utf-8") as file:
                file.write(as_line(line))

    def show(self, pictures: dict[str, bytes]) -> None:
        """Keep what an epoch looks like: files by their names, in the place of earlier ones."""
        folder = self.folder / "pictures"
        with explained(self.folder):
            for name, content in pictures.items():
                folder.mkdir(exist_ok=True)
                write_atomically(folder / name, content, locked=True)

    def save_is_due(self) -> bool:
        """As often as costs no more than a fiftieth of the time: on a CPU after every epoch."""
        return time.monotonic() - self.saved_at >= self.saving_took / SAVING_SHARE

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Put the checkpoint in the place of the last one, which becomes the previous one."""
        start = time.monotonic()
        last, new = self.folder / "last.pt", self.folder / "last.pt.new"
        with explained(self.folder), removed_on_failure(new):
            self._write(checkpoint, new)
            if last.exists():
                os.replace(last, self.folder / "previous.pt")
            os.replace(new, last)
            sync_folder(self.folder)
        self.saved_at = time.monotonic()
        self.saving_took = self.saved_at - start

    def keep(self, checkpoint: dict[str, Any]) -> None:
        """Put the weights of this epoch aside, to be looked at later."""
        path = kept_path(self.folder, checkpoint["epoch"])
        new = path.with_name(path.name + ".new")
        with explained(self.folder), removed_on_failure(new):
            path.parent.mkdir(exist_ok=True)
            self._write(checkpoint, new)
            os.replace(new, path)
            sync_folder(path.parent)

    def _write(self, checkpoint: dict[str, Any], path: Path) -> None:
        with open(path, "wb") as file:
            torch.save({**checkpoint, "metrics": self.metrics, "times": self.times}, file)
            file.flush()
            os.fsync(file.fileno())

    def finish(self, result: dict[str, Any]) -> None:
        """Note how it ended; the checkpoint before the last has served its purpose.

        A line is added without waiting for the disk; here the lists are written to last.
        """
        with explained(self.folder):
            self._write_lists()
            write_atomically(self.folder / "result.json", as_line(result, indent=2), locked=True)
            (self.folder / "previous.pt").unlink(missing_ok=True)


# --- reading -------------------------------------------------------------------------------------


class Damaged(Exception):
    """A checkpoint that cannot be used."""


def kept_path(folder: Path, epoch: int) -> Path:
    return folder / "kept" / f"{epoch}.pt"


def kept_epochs(folder: Path) -> list[int]:
    """After which epochs the weights are still there."""
    stems = (path.stem for path in (folder / "kept").glob("*.pt"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def find_checkpoint(folder: Path, epoch: int | None = None) -> Path:
    """The last one, or the weights that were kept after an epoch."""
    path = folder / "last.pt" if epoch is None else kept_path(folder, epoch)
    if path.exists():
        return path
    if epoch is None:
        raise UserError(f"{folder} has no checkpoint yet: train the run first")
    there = ", ".join(map(str, kept_epochs(folder)))
    instead = f"it has those of {there}" if there else "sgdf train --keep N keeps them"
    raise UserError(f"{folder} has not kept the weights of epoch {epoch}: {instead}")


def require_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """A checkpoint that nothing can stand in for, or a sentence that says what is wrong with it."""
    try:
        return read_checkpoint(path, device)
    except Damaged as error:
        raise UserError(f"{path} is damaged ({error}): train the run again") from None


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """A checkpoint that is whole: torch itself does not check the sums of what it reads."""
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
        if wrong is not None:
            raise Damaged(f"its part {wrong} does not have its checksum")
        checkpoint = torch.load(path, map_location=device, weights_only=True)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except Damaged:
        raise
    except Exception as error:  # whatever a reader may say of bytes that are no checkpoint
        raise Damaged(str(error).partition("\n")[0]) from None
    if not isinstance(checkpoint, dict) or not {"epoch", "metrics", "times"} <= checkpoint.keys():
        raise Damaged("it is not the checkpoint of a run")
    return checkpoint


def read_config(folder: Path) -> Config:
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} is not the folder of a run: it has no config.json") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return Config.from_json(values, str(path))


def read_result(folder: Path) -> dict[str, Any] | None:
    path = folder / "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict) or "status" not in result:
            raise ValueError("it is not the result of a run")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; remove it and run the same command again"
        ) from None
    return result


def read_end(folder: Path) -> dict[str, Any] | None:
    """How a run ended, well or badly, as far as is known: a failure lasts until a success."""
    result = read_result(folder)
    if result is not None:
        return result
    try:
        text = (folder / "failure.json").read_text(encoding="utf-8")
        return {"status": "failed", "error": str(json.loads(text)["error"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a list; one that a killed process left unfinished is no line."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


# --- writing -------------------------------------------------------------------------------------


def as_line(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"









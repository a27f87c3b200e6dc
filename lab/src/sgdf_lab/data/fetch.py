"""Downloads: resumed where they stopped, checked by their checksum, one process at a time.

Ours rather than pooch, which starts a broken download again from its first byte.
"""

import errno
import fcntl
import hashlib
import http.client
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sgdf_lab.data.archive import SCRATCH, unpack
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.files import open_lock

if TYPE_CHECKING:
    from rich.console import Console

TIMEOUT = 30.0  # seconds without an answer
COMMAND_TIMEOUT = 1800.0
CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A published file, its published md5, and the folder in it, if it is an archive.

    Without an md5 the caller checks what is in the file.
    """

    url: str
    md5: str
    root: str = ""

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


Fallback = Callable[[Path, "Console"], None]  # fetches a dataset into its folder by other means


class Unreachable(UserError):
    """The official server did not answer, or not with the file."""


class ToolMissing(UserError):
    """A program that a fallback needs is not installed."""


def fetch_files(
    remotes: Sequence[Remote], home: Path, fallback: Fallback | None, console: "Console"
) -> None:
    """Download and unpack the official files into `home`, or else use the fallback."""
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        for leftover in home.glob(f"{SCRATCH}*"):  # of a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            for remote in remotes:
                _fetch_official(remote, home, console)
        except Unreachable as unreachable:
            files = " and ".join(remote.file for remote in remotes)
            advice = f"try again later, or put {files} into {home}"
            if fallback is None:
                raise UserError(
                    f"{unreachable}, and there is no other source for {home.name}: {advice}"
                ) from None
            console.print(str(unreachable), markup=False, highlight=False, soft_wrap=True)
            try:
                fallback(home, console)
            except ToolMissing as missing:
                raise UserError(f"{missing}: {advice}") from None


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of the folder: two downloads into one file would corrupt it."""
    with open(open_lock(home / ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is fetching into {home}: wait for it") from None
        yield


def _fetch_official(remote: Remote, home: Path, console: "Console") -> None:
    """Download one file, unless it is here, and unpack it, if it is an archive."""
    file = _existing(remote, home)
    if remote.root:
        file = file or _existing(remote, home.parent)
    file = file or _download(remote, home, console)
    if remote.root:
        unpack(file, remote.root, home / remote.root)


def _existing(remote: Remote, folder: Path) -> Path | None:
    """A file that is here already, if it is the published one."""
    path = folder / remote.file
    if not path.is_file():
        return None
    if remote.md5 and file_checksum(path, "md5") != remote.md5:
        raise UserError(
            f"{path} is not the published file (its md5 differs): "
            "delete it and run the same command again"
        )
    return path


def _download(remote: Remote, home: Path, console: "Console") -> Path:
    """Download to a .part file, resuming an earlier download; check it, then rename it."""
    part = home / f"{remote.file}.part"
    try:
        with part.open("ab") as file:
            _receive(remote, file, console)
    finally:
        if part.stat().st_size == 0:
            part.unlink()
    if remote.md5 and file_checksum(part, "md5") != remote.md5:
        part.unlink()
        raise UserError(
            f"what {remote.url} sent is not the published file (its md5 differs); "
            "it was deleted: run the same command again"
        )
    return part.replace(home / remote.file)


def _receive(remote: Remote, file: IO[bytes], console: "Console") -> None:
    """Append the missing bytes to the file."""
    from rich import progress as rich

    size = file.tell()
    headers = {"Range": f"bytes={size}-"} if size else {}
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and size:  # nothing is missing, if the checksum agrees
            return
        raise Unreachable(f"{remote.url} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"{remote.url} cannot be reached ({reason})") from error
    with answer:
        if size and answer.status != 206:  # without support for ranges it sends the file again
            file.truncate(0)
            size = 0
        length = answer.headers.get("Content-Length")
        total = size + int(length) if length else None
        amount = (rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), *amount)
        with rich.Progress(*columns, console=console) as progress:
            bar = progress.add_task(remote.file, total=total, completed=size)
            for chunk in _chunks(answer, remote):
                file.write(chunk)
                size += len(chunk)
                progress.update(bar, completed=size)
    if total and size < total:
        raise _broken(remote, "the server closed it")


def _chunks(answer: http.client.HTTPResponse, remote: Remote) -> Iterator[bytes]:
    """What the server sends. Errors of the network are handled here, those of the disk are not."""
    try:
        while chunk := answer.read1(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _broken(remote, str(error)) from error


def _broken(remote: Remote, why: str) -> UserError:
    return UserError(
        f"the connection to {remote.url} broke ({why}): run the same command again to resume"
    )


@contextmanager
def resumable(command: str, folder: Path) -> Iterator[None]:
    """Say what a stopped download, or one that the disk refuses, needs to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped: `{command}` resumes") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk of {folder} is full: free some space, then run the same command again"
            ) from error
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}; "
            "use another folder with --data-dir or SGDF_DATA"
        ) from error


def find_tool(name: str, dataset: str) -> str:
    """The path of a program that a fallback needs."""
    path = shutil.which(name)
    if not path:
        raise ToolMissing(f"the other source for {dataset} needs {name}, which is not installed")
    return path


def run_tool(argv: list[str], folder: str, console: "Console") -> None:
    """Run a program in the folder; its failure is one sentence."""
    typed = shlex.join([Path(argv[0]).name, *argv[1:]])
    try:
        with console.status(f"{typed} ..."):
            done = subprocess.run(
                argv, cwd=folder, capture_output=True, text=True, timeout=COMMAND_TIMEOUT
            )
    except subprocess.TimeoutExpired:
        minutes = COMMAND_TIMEOUT / 60
        raise UserError(f"`{typed}` did not finish within {minutes:.0f} minutes") from None
    if done.returncode:
        raise UserError(f"`{typed}` failed: {' '.join(done.stderr.split())[:300]}")


def file_checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()

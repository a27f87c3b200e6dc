"""Writing files so that no failure leaves half of one, reading only what is a plain file of a
plausible size, and explaining what a disk refuses.
"""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sgdf_lab.support.errors import UserError

TEXT_LIMIT = 64 * 2**20  # bytes; no text that the lab writes comes near


@contextlib.contextmanager
def replacing(path: Path, *, locked: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends without an error.

    Whatever happens, `path` is the whole old file or the whole new one.

    Args:
        path: the file to write; its folder has to exist.
        locked: no other process writes this file, because the caller holds a lock. The temporary
            file then has one fixed name, so that the next write removes what a killed process left.
    """
    unique = "" if locked else f".{os.getpid()}-{secrets.token_hex(4)}"
    new = path.with_name(f"{path.name}{unique}.new")
    with removed_on_failure(new):
        with create(new) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        sync_folder(path.parent)


def visible_files(folder: Path, owners: dict[str, Path] | None = None) -> Iterator[Path]:
    """All files in a folder and in those in it, also behind links, without the hidden ones.

    A folder that links lead to twice is read once. One that cannot be read is an OSError, and so is
    a link to a folder that holds this one.

    Args:
        folder: where to begin.
        owners: what calls share that must not read the same folder: each folder that one of them
            has read, and where it began.
    """

    def refuse(error: OSError) -> None:
        raise error

    owners = {} if owners is None else owners
    home = Path(os.path.realpath(folder))
    for where, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(where)
        if owners.get(real) == folder:
            folders.clear()
            continue
        if Path(real) in home.parents:
            raise OSError(errno.ELOOP, "it is a link to a folder that holds it", where)
        if real in owners:
            raise OSError(errno.ELOOP, f"it is also a part of {owners[real]}", where)
        owners[real] = folder
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where) / name for name in files if not name.startswith("."))


def create(path: Path) -> BinaryIO:
    """Open a new file for writing, in place of one that a killed process left.

    Whatever has the name is removed, never opened: a link would lead to a file elsewhere, and a
    named pipe would block.
    """
    if path.is_dir() and not path.is_symlink():
        raise OSError(errno.EISDIR, f"{path.name} is a folder", str(path))
    path.unlink(missing_ok=True)
    return open(path, "xb")


def open_lock(path: Path) -> int:
    """A descriptor of the lock file; an OSError if it is a link, or not a regular file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, folder or socket
            reason = f"{path.name} is not a regular file"
            raise OSError(error.errno, reason, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file", str(path))
    return descriptor


def write_atomically(path: Path, content: str | bytes, *, locked: bool = False) -> None:
    """Write the whole file, or leave the old one as it is. For `locked` see `replacing`."""
    with replacing(path, locked=locked) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """Write JSON atomically. NaN and infinity are errors: JSON has neither."""
    text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text + "\n")


def open_regular(path: Path, *, limit: int | None = None) -> BinaryIO:
    """Open a file for reading; an OSError if it is not a regular file of at most `limit` bytes.

    A named pipe would block, and a link to a device such as /dev/zero would never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        if limit is not None and status.st_size > limit:
            raise OSError(f"{path.name} is too large, {status.st_size} bytes")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: Path, *, limit: int = TEXT_LIMIT) -> str:
    """The text of a regular file of at most `limit` bytes; see `open_regular`."""
    with open_regular(path, limit=limit) as file:
        return file.read().decode("utf-8")


def read_named(path: Path, *, limit: int = TEXT_LIMIT) -> str:
    """The text of a file that a user named; what is wrong with it is one sentence."""
    try:
        return read_text(path, limit=limit)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def sync_folder(folder: Path) -> None:
    """Flush a folder: a rename survives a power cut only after that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    """Remove the file if the block raises."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into one sentence."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.save wraps what the file said, and keeps it as the context.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        if not isinstance(cause, OSError):
            raise
        if cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk of {folder} is full: what was saved is whole; make room and run the "
                "same command again"
            ) from error
        raise UserError(f"{folder} cannot be written: {cause.strerror}") from error

"""Compile C++ on the user's machine and keep the library in the user's cache directory.

To load a library is to run it. So the cache is used only if nobody but this user can write to it
or replace it, everything about a cached file is checked on the open file, and what is loaded is a
private copy of what was checked.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Library = TypeVar("Library")
LARGEST = 1 << 26  # bytes; no library of ours comes near, and an endless file would never be read


def find_compiler() -> list[str]:
    """The command of a C++ compiler."""
    if os.environ.get("CXX"):
        named = os.environ["CXX"]
        try:
            command = shlex.split(named)
        except ValueError as error:
            raise RuntimeError(f"cannot read the C++ compiler {named!r} (CXX): {error}") from None
        if not command or shutil.which(command[0]) is None:
            name = command[0] if command else repr(named)
            raise RuntimeError(f"cannot find the C++ compiler {name} (CXX)")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("there is no C++ compiler (c++, g++, clang++, or one named in CXX)")


def version_of(compiler: list[str]) -> bytes:
    """What the compiler prints about itself."""
    return subprocess.run([*compiler, "--version"], capture_output=True, timeout=60).stdout


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def load_or_compile(
    stem: str, compile_to: Callable[[Path], None], open_library: Callable[[Path], Library]
) -> Library:
    """Open the library from the cache, or compile it and keep it there.

    `stem` has to name everything the compiled library depends on. Without a cache that is writable
    for this user, and for nobody else, the library is compiled only for this process.
    """
    folder = _private_cache()
    with tempfile.TemporaryDirectory(
        prefix="sgdf-", dir=_private_place(folder), ignore_cleanup_errors=True
    ) as private:
        # Once mapped, a library survives the removal of the directory.
        library = Path(private, "library.so")
        for cached, content in _cached(folder, stem) if folder else ():
            library.write_bytes(content)
            with contextlib.suppress(OSError, AttributeError):
                return open_library(library)
            with contextlib.suppress(OSError):
                cached.unlink()
        compile_to(library)
        if folder:
            with contextlib.suppress(OSError):
                _keep(library, folder, stem)
        return open_library(library)


def _private_place(folder: Path | None) -> str | None:
    """Where nobody else can replace a new directory: the temporary directory, or the cache."""
    place = Path(tempfile.gettempdir())
    if not hasattr(os, "geteuid") or not _replaceable(place / "new"):
        return None
    if folder is None:
        raise RuntimeError(
            f"others may write to {place} and to the cache: set TMPDIR to a place of yours"
        )
    return str(folder)


def _private_cache() -> Path | None:
    """The folder of the libraries, created if need be; None if others can use it."""
    if not hasattr(os, "geteuid"):
        return None
    try:
        folder = _cache()
        for new in (folder.parent.parent, folder.parent, folder):
            with contextlib.suppress(FileExistsError):
                new.mkdir(mode=0o700, parents=True)
        folder = folder.parent.resolve() / folder.name  # without links on the way: they may change
        status = folder.lstat()
        own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if own and not status.st_mode & 0o077 and not _replaceable(folder):
            return folder
    except (OSError, RuntimeError):  # no space, no permission, no home directory
        pass
    return None


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):  # its specification says to ignore a relative path
        root = str(Path.home() / ".cache")
    return Path(root, "sgdf", "kernels")


def _replaceable(path: Path) -> bool:
    """Whether others may rename what is above: they could put something else there.

    Those are the owners of the folders, unless they are this user or root, and all who may write to
    them, unless the sticky bit leaves renaming to the owner.
    """
    folders = [parent.stat() for parent in path.resolve().parents]
    foreign = any(status.st_uid not in (0, os.geteuid()) for status in folders)
    return foreign or any(
        status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        for status in folders
    )


def _cached(folder: Path, stem: str) -> list[tuple[Path, bytes]]:
    """The complete libraries in the cache under this name; all else of this name is removed.

    dlopen crashes on a truncated file, so the name of a file has a digest of its content. What has
    been checked is returned, not the name of a file: that may be another by the time it is opened.
    """
    complete = []
    for path in sorted(folder.glob(f"{stem}-*.so")):
        content = _content(path)
        if content is not None and path.stem.endswith(digest(content)):
            complete.append((path, content))
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return complete


def _content(path: Path) -> bytes | None:
    """The content of a regular file that only this user can write; None for anything else."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        regular = stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST
        if not regular or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _keep(compiled: Path, folder: Path, stem: str) -> None:
    """Copy a library into the cache, atomically: other processes may be looking for it."""
    content = compiled.read_bytes()
    kept = folder / f"{stem}-{digest(content)}.so"
    descriptor, name = tempfile.mkstemp(prefix=kept.name, suffix=".new", dir=folder)  # mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, kept)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise

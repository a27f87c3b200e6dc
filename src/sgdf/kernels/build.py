"""Compile C++ on the user's machine and keep the library in the user's cache directory."""

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sgdf.support.files import write_atomically

Library = TypeVar("Library")


def find_compiler() -> list[str]:
    """The command of a C++ compiler."""
    if os.environ.get("CXX"):
        command = shlex.split(os.environ["CXX"])
        if shutil.which(command[0]) is None:
            raise RuntimeError(f"cannot find the C++ compiler {command[0]} (CXX)")
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

    `stem` has to name everything the compiled library depends on. Without a writable cache the
    library is compiled for this process alone.
    """
    for cached in _cached(stem):
        with contextlib.suppress(OSError, AttributeError):
            return open_library(cached)
        with contextlib.suppress(OSError):
            cached.unlink()
    with tempfile.TemporaryDirectory(prefix="sgdf-", ignore_cleanup_errors=True) as private:
        compiled = Path(private, "library.so")
        compile_to(compiled)
        with contextlib.suppress(OSError, RuntimeError):
            return open_library(_keep(compiled, stem))
        return open_library(compiled)  # once mapped, it survives the removal of the directory


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "sgdf")


def _cached(stem: str) -> list[Path]:
    """The complete libraries in the cache under this name; damaged ones are removed.

    dlopen crashes on a truncated file, so the name of a file has a digest of its content.
    """
    complete = []
    with contextlib.suppress(OSError, RuntimeError):
        for path in sorted(_cache().glob(f"{stem}-*.so")):
            if path.stem.endswith(digest(path.read_bytes())):
                complete.append(path)
            else:
                path.unlink(missing_ok=True)
    return complete


def _keep(compiled: Path, stem: str) -> Path:
    """Copy a library into the cache, atomically: other processes may be looking for it."""
    directory = _cache()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = compiled.read_bytes()
    kept = directory / f"{stem}-{digest(content)}.so"
    write_atomically(kept, content)
    return kept

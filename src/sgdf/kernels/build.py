"""C++ compiled on the user's machine, and kept in the user's cache directory."""

import contextlib
import hashlib
import os
import shlex
import shutil
from pathlib import Path

from sgdf.support.files import write_atomically


def compiler() -> list[str]:
    """The command of a C++ compiler."""
    if os.environ.get("CXX"):
        command = shlex.split(os.environ["CXX"])
        if shutil.which(command[0]) is None:
            raise RuntimeError(f"the C++ compiler {command[0]} (CXX) is not there")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("there is no C++ compiler (c++, g++, clang++, or one named in CXX)")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "sgdf")


def kept(stem: str) -> list[Path]:
    """The libraries in the cache under this name that are whole; what is not, is removed.

    dlopen crashes on a file cut short, so a file's name says what has to be inside.
    """
    whole = []
    with contextlib.suppress(OSError, RuntimeError):
        for path in sorted(cache().glob(f"{stem}-*.so")):
            if path.stem.endswith(digest(path.read_bytes())):
                whole.append(path)
            else:
                path.unlink(missing_ok=True)
    return whole


def keep(built: Path, stem: str) -> Path:
    """A copy in the cache, there at once and as a whole: others may be looking for it."""
    directory = cache()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = built.read_bytes()
    kept = directory / f"{stem}-{digest(content)}.so"
    write_atomically(kept, content)
    return kept

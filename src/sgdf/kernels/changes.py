"""Whether anything has changed since the last step, asked in C++ (`changes.cpp`).

A fused step on CUDA must know that parameters, gradients and state lie where its tables say. In
Python that takes thousands of calls, longer than the GPU works on a small model. The C++ is
compiled in the background when the first plan is made, which takes some seconds with torch's
headers; until then, and where it cannot be compiled, Python looks.
"""

import contextlib
import ctypes
import subprocess
import sys
import sysconfig
import tempfile
import threading
from array import array
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgdf.kernels import build

SOURCE = Path(__file__).with_name("changes.cpp")
FLAGS = [
    "-O2",
    "-fPIC",
    "-shared",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
]
STANDARDS = ("-std=c++20", "-std=c++17")  # torch's headers want the newest that is there

SAME, MOVED, CHANGED = range(3)  # nothing is new, the gradients' addresses alone, or else

_library: ctypes.PyDLL | None = None
_thread: threading.Thread | None = None
_lock = threading.Lock()


def start() -> None:
    """Have it compiled, once, while others go on."""
    global _thread
    with _lock:
        if _thread is None and not free_threaded():
            _thread = threading.Thread(target=_build, name="sgdf-watch", daemon=True)
            _thread.start()


def wait() -> bool:
    """Until it is there, or known not to come; for benchmarks and tests."""
    start()
    if _thread is not None:
        _thread.join()
    return _library is not None


def free_threaded() -> bool:
    """Without the GIL others could change what is being looked at."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _build() -> None:
    global _library
    # No compiler, no headers of Python, no room: Python looks.
    with contextlib.suppress(OSError, RuntimeError, AttributeError, subprocess.SubprocessError):
        _library = _load()


def _load() -> ctypes.PyDLL:
    compiler = build.compiler()
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=60)
    parts = [compiler, FLAGS, version.stdout, torch.__version__, torch.__file__, sys.version]
    stem = f"changes-{build.digest(SOURCE.read_bytes() + repr(parts).encode())}"
    for path in build.kept(stem):
        with contextlib.suppress(OSError, AttributeError):
            return _open(path)
    with tempfile.TemporaryDirectory(prefix="sgdf-", ignore_cleanup_errors=True) as private:
        built = Path(private, "watch.so")
        _compile(compiler, built)
        with contextlib.suppress(OSError, RuntimeError):
            return _open(build.keep(built, stem))
        return _open(built)


def _compile(compiler: list[str], output: Path) -> None:
    root = Path(torch.__file__).parent
    headers = (root / "include", root / "include" / "torch" / "csrc" / "api" / "include")
    includes = [f"-I{path}" for path in (*headers, sysconfig.get_paths()["include"])]
    libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python"]
    for standard in STANDARDS:
        command = [*compiler, standard, *FLAGS, *includes, str(SOURCE), "-o", str(output)]
        done = subprocess.run([*command, *libraries], capture_output=True, timeout=300)
        if done.returncode == 0:
            return
    raise RuntimeError("the compiler refuses")


def _open(path: Path) -> ctypes.PyDLL:
    library = ctypes.PyDLL(str(path))  # which keeps the GIL
    pointer, whole, anything = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
    library.sgdf_facts.argtypes = [anything, anything, pointer, whole, pointer]
    library.sgdf_facts.restype = whole
    return library


class Watch:
    """The facts about some parameters, their gradients and their state, as they were last seen."""

    def __init__(self, library: ctypes.PyDLL, params: list[Tensor], states: list[Any]) -> None:
        self.params, self.states = params, states
        self.facts = library.sgdf_facts
        self.now = array("q")
        self.grads_now = array("q", bytes(8 * len(params)))
        self.note()

    def look(self) -> int:
        """Whether all is as `note` saw it; where it could see nothing, nothing is."""
        if self._facts() != self.count or self.count < 0 or self.now != self.known:
            return CHANGED
        return SAME if self.grads_now == self.grads else MOVED

    def note(self) -> None:
        """Take the facts as they are now for what has to stay."""
        self.count = self._facts()
        if self.count >= 0 and self.count != len(self.now):
            self.now = array("q", bytes(8 * self.count))
            self._facts()
        self.known, self.grads = self.now[:], self.grads_now[:]

    def _facts(self) -> int:
        facts, room = self.now.buffer_info()
        grads, _ = self.grads_now.buffer_info()
        return int(self.facts(self.params, self.states, facts, room, grads))


def of(params: list[Tensor], states: list[Any]) -> Watch | None:
    """A watch on these, if it has been compiled by now."""
    return None if _library is None else Watch(_library, params, states)

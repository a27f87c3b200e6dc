"""Detect in C++ (`changes.cpp`) whether anything has changed since the last step.

A fused step on CUDA has to know that parameters, gradients and state are where its tables say. In
Python that takes thousands of calls, longer than the GPU works on a small model. The C++ is
compiled in the background when the first plan is made, which takes some seconds with torch's
headers. Until then, and if it cannot be compiled, `plan` checks in Python.
"""

import contextlib
import ctypes
import functools
import subprocess
import sys
import sysconfig
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
STANDARDS = ("-std=c++20", "-std=c++17")  # newest first: torch's headers need it

UNCHANGED, GRADIENTS_MOVED, CHANGED = range(3)  # nothing, gradients' addresses alone, or more

_library: ctypes.PyDLL | None = None
_thread: threading.Thread | None = None
_lock = threading.Lock()


def compile_in_background() -> None:
    """Start compiling, once per process."""
    global _thread
    with _lock:
        if _thread is None and not free_threaded():
            _thread = threading.Thread(target=_build, name="sgdf-changes", daemon=True)
            _thread.start()


def wait_until_compiled() -> bool:
    """Wait for the compiler; False if it cannot be compiled. For benchmarks and tests."""
    compile_in_background()
    if _thread is not None:
        _thread.join()
    return _library is not None


def free_threaded() -> bool:
    """Without the GIL, other threads could change the lists while C++ reads them."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _build() -> None:
    global _library
    # No compiler, no Python headers, no disk space: Python checks instead.
    with contextlib.suppress(OSError, RuntimeError, AttributeError, subprocess.SubprocessError):
        _library = _load()


def _load() -> ctypes.PyDLL:
    compiler = build.find_compiler()
    versions = [build.version_of(compiler), torch.__version__, torch.__file__, sys.version]
    key = build.digest(SOURCE.read_bytes() + repr([compiler, FLAGS, *versions]).encode())
    compile_to = functools.partial(_compile, compiler)
    return build.load_or_compile(f"changes-{key}", compile_to, _open)


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
    raise RuntimeError(f"{compiler[0]} cannot compile {SOURCE.name}")


def _open(path: Path) -> ctypes.PyDLL:
    library = ctypes.PyDLL(str(path))  # unlike CDLL, it keeps the GIL
    pointer, integer, anything = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
    library.sgdf_facts.argtypes = [anything, anything, pointer, integer, pointer]
    library.sgdf_facts.restype = integer
    return library


class ChangeDetector:
    """Compares parameters, their gradients and their state with a snapshot of them."""

    def __init__(self, library: ctypes.PyDLL, params: list[Tensor], states: list[Any]) -> None:
        self.params, self.states = params, states
        self._sgdf_facts = library.sgdf_facts
        self._facts = array("q")
        self._gradients = array("q", bytes(8 * len(params)))
        self.take_snapshot()

    def compare(self) -> int:
        """Compare with the last snapshot; CHANGED if none could be taken."""
        count = self._collect()
        if count != self._count or count < 0 or self._facts != self._snapshot:
            return CHANGED
        return UNCHANGED if self._gradients == self._gradients_then else GRADIENTS_MOVED

    def take_snapshot(self) -> None:
        """Let later comparisons be with the present."""
        self._count = self._collect()
        if self._count >= 0 and self._count != len(self._facts):
            self._facts = array("q", bytes(8 * self._count))
            self._collect()
        self._snapshot, self._gradients_then = self._facts[:], self._gradients[:]

    def gradient_addresses(self) -> list[int]:
        """Where the gradients were at the last comparison."""
        return self._gradients.tolist()

    def _collect(self) -> int:
        facts, room = self._facts.buffer_info()
        gradients, _ = self._gradients.buffer_info()
        return int(self._sgdf_facts(self.params, self.states, facts, room, gradients))


def new_detector(params: list[Tensor], states: list[Any]) -> ChangeDetector | None:
    """A detector with its first snapshot, if the C++ has been compiled by now."""
    return None if _library is None else ChangeDetector(_library, params, states)

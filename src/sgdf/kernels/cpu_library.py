"""`cpu.cpp`, compiled at first use and cached.

Nothing of a step is compiled in: the number of tensors, their sizes and dtypes and all settings
are arguments.
"""

import contextlib
import ctypes
import functools
import platform
import shlex
import subprocess
import threading
import warnings
from pathlib import Path

from sgdf.kernels import build

SOURCE = Path(__file__).with_name("cpu.cpp")
# Without contraction to FMA, +, -, * and / round as in the torch loop: see `arithmetic`. It costs
# no time, because memory is the limit.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
#: Flags that not every compiler accepts, best first.
EXTRAS = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())

_lock = threading.Lock()


def available() -> bool:
    """Whether the library can be used, compiling it if need be; warn once if it cannot."""
    if library() is None:
        _warn_unavailable()
    return library() is not None


def library() -> ctypes.CDLL | None:
    """The library, or None if it cannot be compiled."""
    with _lock:  # functools.cache lets two threads compute the same value
        return _library_or_reason()[0]


@functools.cache
def _library_or_reason() -> tuple[ctypes.CDLL | None, str]:
    """The library, or why there is none."""
    try:
        return _load(), ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, " ".join(str(error).split())


@functools.cache
def _warn_unavailable() -> None:
    reason = _library_or_reason()[1]
    warnings.warn(
        f"the fused CPU kernels cannot be used, using foreach instead: {reason}", stacklevel=4
    )


def _load() -> ctypes.CDLL:
    compiler = build.find_compiler()
    compile_to = functools.partial(_compile, compiler)
    return build.load_or_compile(f"filter-{_key(compiler)}", compile_to, _open)


def _key(compiler: list[str]) -> str:
    """A name for what this compiler makes of this source on this kind of processor."""
    features = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        relevant = ("flags", "Features", "model name", "CPU part")
        features += sorted({line for line in lines if line.startswith(relevant)})
    parts = [compiler, FLAGS, EXTRAS, build.version_of(compiler), features]
    return build.digest(SOURCE.read_bytes() + repr(parts).encode())


def _compile(compiler: list[str], output: Path) -> None:
    for extra in EXTRAS:
        command = [*compiler, *FLAGS, *extra, str(SOURCE), "-o", str(output)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if result.returncode == 0:
            return
    complaint = next((line for line in result.stderr.splitlines() if "error" in line), "")
    raise RuntimeError(f"`{shlex.join(command)}` gave {result.returncode} {complaint}".strip())


def _open(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    loaded.sgdf_step.argtypes = [
        ctypes.c_int, ctypes.c_int64, pointer, pointer, pointer, ctypes.c_int
    ]  # fmt: skip
    loaded.sgdf_step.restype = None
    return loaded

"""CPU: a step as one compiled pass over all tensors (`cpu.cpp`).

All arrays are visited in memory order, so a tensor's parameter, gradient and moments have to be
laid out alike and without gaps. A gradient laid out differently is copied; a tensor with any
other exception is updated by `loop`.

The library is independent of shapes, dtypes and settings: all are arguments. A wheel for one kind
of machine has it inside (`hatch_build.py`); else it is compiled at first use and cached.
"""

import contextlib
import ctypes
import functools
import operator
import platform
import shlex
import subprocess
import threading
import warnings
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import one_minus_power, second_moment_weights
from sgdf.kernels import build, loop
from sgdf.kernels.quantized import Quantized, dense, has_format
from sgdf.kernels.rounding import step_key, tensor_seed
from sgdf.kernels.work import (
    ESTIMATE,
    FILTER,
    MOMENTUM,
    PLAIN,
    Rule,
    Work,
    as_real,
    check_consistent,
    increment,
)

DTYPES = {  # the enum of cpu.cpp
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}
SIGNED, UNSIGNED = 4, 5
KINDS = {MOMENTUM: 0, FILTER: 1, ESTIMATE: 2}
CORRECTIONS = 5  # numbers in a `Corrections` of cpu.cpp
SECOND = {None: 0, "separate": 1, "derived": 2, "fluctuation": 2}
IS_CPU, DTYPE = operator.attrgetter("is_cpu"), operator.attrgetter("dtype")
DIFFERENTIABLE = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
)


def suits(params: list[Tensor]) -> bool:
    """Whether these kernels can update all of the parameters; no warning if they cannot."""
    return (
        not torch.compiler.is_compiling()
        and len(params) > 0
        and all(map(IS_CPU, params))
        and DIFFERENTIABLE.issuperset(map(DTYPE, params))
        and library() is not None
    )


def step(work: Work) -> None:
    """One step of a group."""
    if work.found_inf is not None and work.found_inf.item():
        return
    rule, rows = work.rule, _Rows(work)
    if rule.kind == MOMENTUM:
        corrections = array("d", bytes(8 * CORRECTIONS * len(rows.indices)))
    else:
        times = rows.advance(work.steps)
        if rule.stochastic_rounding or rows.few_bits:
            rows.set_keys(rule.rounding_seed, times)
        corrections = _corrections(times, rule)
    rows.step(KINDS[rule.kind], corrections, _numbers(rule, work.scale))
    for i in rows.others:
        loop.step(work.row(i))


def _numbers(rule: Rule, scale: Tensor | None) -> "array[float]":
    """`Settings` of cpu.cpp."""
    (beta1, beta2), gain_eps, gain_scale, gain_power, *_ = rule.settings
    kind, adam_eps = rule.denominator or (None, 0.0)
    lr, decay = float(rule.lr), rule.weight_decay
    numbers = [lr, beta1, beta2, gain_eps, adam_eps, decay, gain_scale, gain_power]
    flags = (rule.decoupled, rule.maximize, rule.stochastic_rounding)
    grad_scale = 1.0 if scale is None else scale.item()
    return array("d", [*numbers, grad_scale, SECOND[kind], *flags])


def _corrections(times: list[float], rule: Rule) -> "array[float]":
    """`Corrections` of cpu.cpp for every row."""
    settings, denominator = rule.settings, rule.denominator
    by_step: dict[float, tuple[float, ...]] = {}  # most often all tensors are at one step
    corrections = array("d")
    for t in times:
        if t not in by_step:
            weights: tuple[float, float] = (0.0, 0.0)
            if denominator is not None and denominator.second_moment != "separate":
                weights = second_moment_weights(t, *settings.betas, denominator.second_moment)
            second = one_minus_power(settings.betas[1], t)
            by_step[t] = (*settings.corrections(t), second, *weights)
        corrections.extend(by_step[t])
    return corrections


class _Rows:
    """The tensors of one call in the table that `cpu.cpp` reads, and those it cannot update."""

    WIDTH = 12

    def __init__(self, work: Work) -> None:
        self.indices: list[int] = []
        self.others: list[int] = []
        self.few_bits = False  # whether a moment is rounded at random
        self.alive: list[Tensor] = []  # all that the table points to
        self.written: list[Tensor] = []
        self.table: list[int] = []
        moments = (work.m, work.s, work.v)
        for i, (param, grad) in enumerate(zip(work.params, work.grads, strict=True)):
            row = self._row(param, grad, moments, i)
            if row is None:
                self.others.append(i)
            else:
                self.indices.append(i)
                self.written.append(param)
                self.table += row
        if self.others:
            check_consistent(work.params, work.grads, moments, self.others)

    def _row(self, param: Tensor, grad: Tensor, moments: Any, i: int) -> list[int] | None:
        p, g = param, grad.resolve_neg()
        if p.is_complex():
            p, g = torch.view_as_real(p), torch.view_as_real(g.resolve_conj())
        dtypes = [DTYPES.get(p.dtype), DTYPES.get(g.dtype)]
        if g.shape != p.shape or not (p.is_contiguous() or dense(p)):
            return None
        if not (p.is_cpu and g.is_cpu):
            return None
        strides = p.stride()
        if g.stride() != strides and not _laid_out_like(p, g):
            g = torch.empty_strided(p.shape, strides, dtype=g.dtype, device=p.device).copy_(g)
        addresses, scales, length, missing = [p.data_ptr(), g.data_ptr()], [0, 0, 0], 0, 0
        for k, column in enumerate(moments):
            if column is None:
                missing += 1
                addresses.append(0)
                dtypes.append(0)
                continue
            moment = column[i]
            if isinstance(moment, Quantized):
                codes, scale = moment
                if not (scale.is_cpu and has_format(p, moment) and _in_rows(p)):
                    return None
                length = p.stride(0) if p.numel() else 0
                scales[k] = scale.data_ptr()
                dtypes.append(SIGNED if codes.dtype == torch.int8 else UNSIGNED)
                self.alive.append(scale)
                self.few_bits = True
            else:
                codes = as_real(moment) if param.is_complex() else moment
                self.few_bits |= codes.dtype == torch.bfloat16
                dtypes.append(DTYPES.get(codes.dtype))
            if not codes.is_cpu or codes.shape != p.shape:
                return None
            if codes.stride() != strides and not _laid_out_like(p, codes):
                return None
            addresses.append(codes.data_ptr())
            self.alive.append(codes)
        packed = 0
        for k, dtype in enumerate(dtypes):
            if dtype is None:
                return None
            packed |= dtype << 4 * k
        # Fake tensors have no memory. A moment that is not kept has address 0, too.
        if p.numel() and addresses.count(0) != missing:
            return None
        self.alive += [p, g]
        return [*addresses, *scales, p.numel(), length, packed, 0]

    def advance(self, steps: list[Any] | None) -> list[float]:
        """Increment the step counters of the rows and return their values."""
        assert steps is not None
        counters = [steps[i] for i in self.indices] if self.others else steps
        if counters:
            increment(counters)
        return list(map(Tensor.item, counters))

    def set_keys(self, seed: int, times: list[float]) -> None:
        """Set the key of the random bits of every row."""
        self.table[self.WIDTH - 1 :: self.WIDTH] = [
            step_key(tensor_seed(seed, i), int(t)) for i, t in zip(self.indices, times, strict=True)
        ]

    def step(self, kind: int, corrections: "array[float]", settings: "array[float]") -> None:
        if not self.indices:
            return
        loaded = library()
        if loaded is None:
            raise RuntimeError("the fused CPU kernels are not available")
        table = array("Q", self.table)
        loaded.sgdf_step(
            kind,
            len(self.indices),
            table.buffer_info()[0],
            corrections.buffer_info()[0],
            settings.buffer_info()[0],
            torch.get_num_threads(),
        )
        # Tell autograd that these are no longer the values it saved.
        torch.autograd.graph.increment_version(self.written)


def _laid_out_like(p: Tensor, t: Tensor) -> bool:
    """Whether two tensors of one shape have the same order of elements in memory."""
    if not p.numel():
        return True
    strides = p.stride(), t.stride()
    return all(n == 1 or a == b for n, a, b in zip(p.shape, *strides, strict=True))


def _in_rows(p: Tensor) -> bool:
    """Whether rows follow one another in memory, as `cpu.cpp` counts the blocks of 8-bit codes."""
    return p.stride(0) * p.shape[0] == p.numel()


# --- the passes of a matrix step that are not products -------------------------------------------


def suits_passes(tensors: Iterable[Tensor]) -> bool:
    """Whether `average` and `descend` can read and write all of these."""
    return (
        not torch.compiler.is_compiling()
        and all(
            type(x) in PLAIN  # not fake: those have no memory
            and x.is_cpu
            and x.dtype == torch.float32
            and x.is_contiguous()
            and not x.is_neg()
            for x in tensors
        )
        and library() is not None
    )


def average(
    g: Tensor,
    m: Tensor,
    slow: Tensor | None,
    clipped: Tensor | None,
    out: Tensor,
    numbers: Sequence[float],
) -> None:
    """Update the averages; write gradient and trend or, without `clipped`, the estimate.

    The numbers are those of `Averages` in cpu.cpp.
    """
    loaded, row = library(), array("d", numbers)
    assert loaded is not None
    addresses = (0 if x is None else x.data_ptr() for x in (g, m, slow, clipped, out))
    loaded.sgdf_average(g.numel(), *addresses, row.buffer_info()[0], torch.get_num_threads())


def descend(p: Tensor, update: Tensor, shrink: float, rate: float) -> None:
    """p <- shrink p - rate update."""
    loaded = library()
    assert loaded is not None
    threads = torch.get_num_threads()
    loaded.sgdf_descend(p.numel(), p.data_ptr(), update.data_ptr(), shrink, rate, threads)
    torch.autograd.graph.increment_version([p])


# --- the compiled library -----------------------------------------------------------------------

SOURCE = Path(__file__).with_name("cpu.cpp")
PREBUILT = Path(__file__).with_name("prebuilt")
# Without contraction to FMA, +, -, * and / round as in the torch loop: see `work`. It costs no
# time, because memory is the limit.
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
    prebuilt = PREBUILT / f"{torch.backends.cpu.get_cpu_capability().lower()}.so"
    if prebuilt.exists():
        with contextlib.suppress(OSError, AttributeError):  # torch has no OpenMP runtime
            return _open(prebuilt)
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
    number = ctypes.c_double
    loaded.sgdf_average.argtypes = [ctypes.c_int64, *[pointer] * 6, ctypes.c_int]
    loaded.sgdf_descend.argtypes = [
        ctypes.c_int64, pointer, pointer, number, number, ctypes.c_int
    ]  # fmt: skip
    for function in (loaded.sgdf_step, loaded.sgdf_average, loaded.sgdf_descend):
        function.restype = None
    return loaded

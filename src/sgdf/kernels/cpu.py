"""CPU: the optimizers' updates as one compiled pass over all tensors (`cpu.cpp`).

The C++ file is compiled at first use and kept in the user's cache directory. Nothing of a step is
compiled in: the number of tensors, their sizes and dtypes and every setting are arguments.

All arrays are visited in memory order, so a tensor's parameter, gradient and moments have to be
laid out alike and without gaps. A gradient laid out differently is copied; any other exception
goes through `eager`'s loop.
"""

import contextlib
import ctypes
import functools
import platform
import shlex
import subprocess
import tempfile
import threading
import warnings
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import bias_corrections, one_minus_power
from sgdf.kernels import build, eager
from sgdf.kernels.quantized import Quantized, blocks_per_row, dense
from sgdf.kernels.rounding import GOLDEN, step_key, tensor_seed

__all__ = ["available", "filter_fused", "momentum_fused"]

SOURCE = Path(__file__).with_name("cpu.cpp")
# Without contraction to FMA the results have the bits of the torch loop; memory is the limit.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
#: What not every compiler takes, best first.
EXTRAS = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())

DTYPES = {  # the enum of cpu.cpp
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}
SIGNED, UNSIGNED = 4, 5
MOMENTUM, FILTER, ADAM = range(3)


# --- compiling --------------------------------------------------------------------------------


def available() -> bool:
    """Whether the kernels are there, compiling them if need be; says once why if they are not."""
    if _library() is None:
        _say_why_not()
    return _library() is not None


def suits(params: Sequence[Tensor]) -> bool:
    """Whether these kernels can update every one of the parameters; no word if they cannot."""
    return (
        not torch.compiler.is_compiling()
        and len(params) > 0
        and all(p.is_cpu and (p.is_floating_point() or p.is_complex()) for p in params)
        and _library() is not None
    )


_lock = threading.Lock()


def _library() -> ctypes.CDLL | None:
    with _lock:  # functools.cache lets two threads compute the same value
        return _compiled()[0]


@functools.cache
def _compiled() -> tuple[ctypes.CDLL | None, str]:
    """The library, or why there is none."""
    try:
        return _load(), ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, " ".join(str(error).split())


@functools.cache
def _say_why_not() -> None:
    reason = _compiled()[1]
    warnings.warn(
        f"the fused CPU kernels cannot be used, foreach takes their place: {reason}", stacklevel=4
    )


def _load() -> ctypes.CDLL:
    """The compiled library from the cache, or newly compiled and put there."""
    compiler = build.compiler()
    stem = f"filter-{_key(compiler)}"
    for cached in build.kept(stem):
        with contextlib.suppress(OSError, AttributeError):
            return _open(cached)
        with contextlib.suppress(OSError):
            cached.unlink()
    with tempfile.TemporaryDirectory(prefix="sgdf-", ignore_cleanup_errors=True) as private:
        built = Path(private, "filter.so")
        _compile(compiler, built)
        with contextlib.suppress(OSError, RuntimeError):
            return _open(build.keep(built, stem))
        return _open(built)  # mapped, it survives the removal of the directory


def _key(compiler: list[str]) -> str:
    """A name for what this compiler makes of this source on this kind of processor."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=60)
    features = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        wanted = ("flags", "Features", "model name", "CPU part")
        features += sorted({line for line in lines if line.startswith(wanted)})
    parts = [compiler, FLAGS, EXTRAS, version.stdout, features]
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
    library = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    library.sgdf_step.argtypes = [
        ctypes.c_int, ctypes.c_int64, pointer, pointer, pointer, ctypes.c_int
    ]  # fmt: skip
    library.sgdf_step.restype = None
    return library


# --- the updates ------------------------------------------------------------------------------


def filter_fused(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[eager.Moment],
    exp_vars: Sequence[eager.Moment],
    exp_avg_sqs: Sequence[eager.Moment] = (),
    *,
    lr: eager.Scalar,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    gain_scale: float,
    gain_power: float,
    correction: bool,
    decoupled_weight_decay: bool,
    maximize: bool,
    stochastic_rounding: bool = False,
    rounding_seed: int = 0,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of SGDF or, with second moments, FilterAdam."""
    if found_inf is not None and found_inf.item():
        return
    beta1, beta2 = betas
    moments = [exp_avgs, exp_vars] + ([exp_avg_sqs] if exp_avg_sqs else [])
    rows = _Rows(params, grads, moments)

    counters = [steps[i] for i in rows.indices]
    if counters:
        eager._increment(counters)
    times = [step.item() for step in counters]
    scalars: dict[float, tuple[float, ...]] = {}  # most often all tensors are at one step
    corrections = array("d")
    for t in times:
        if t not in scalars:
            trend, fluctuation = bias_corrections(t, beta1, beta2, correction)
            scalars[t] = (trend, fluctuation, one_minus_power(beta2, t))
        corrections.extend(scalars[t])
    if stochastic_rounding or rows.quantized:
        rows.set_keys(
            step_key(tensor_seed(rounding_seed, i), int(t))
            for i, t in zip(rows.indices, times, strict=True)
        )
    numbers = [beta1, beta2, eps, weight_decay, gain_scale, gain_power, _value(grad_scale)]
    flags = [decoupled_weight_decay, maximize, stochastic_rounding]
    settings = array("d", [float(lr), *numbers, *flags])
    rows.step(ADAM if exp_avg_sqs else FILTER, corrections, settings)

    for i in rows.others:
        eager.filter_loop(
            [params[i]],
            [_unscaled(grads[i], params[i], grad_scale)],
            [steps[i]],
            *([column[i]] for column in moments),
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            gain_scale=gain_scale,
            gain_power=gain_power,
            correction=correction,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            capturable=False,
            differentiable=False,
            stochastic_rounding=stochastic_rounding,
            # There it is tensor 0 of a list, and draws the bits of tensor i.
            rounding_seed=rounding_seed + i * GOLDEN,
        )


def momentum_fused(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    lr: eager.Scalar,
    beta: float,
    mu: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of Momentum."""
    if found_inf is not None and found_inf.item():
        return
    rows = _Rows(params, grads, [buffers])
    numbers = [beta, 0, 0, weight_decay, mu, 1, _value(grad_scale)]  # the filter's, in order
    settings = array("d", [float(lr), *numbers, decoupled_weight_decay, maximize, False])
    rows.step(MOMENTUM, array("d", [0.0] * 3 * len(rows.indices)), settings)
    for i in rows.others:
        eager.momentum_loop(
            [params[i]],
            [_unscaled(grads[i], params[i], grad_scale)],
            [buffers[i]],
            lr=lr,
            beta=beta,
            mu=mu,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )


def _value(scale: Tensor | None) -> float:
    return 1.0 if scale is None else scale.item()


def _unscaled(g: Tensor, p: Tensor, scale: Tensor | None) -> Tensor:
    """For the loop, which knows no GradScaler."""
    if scale is None:
        return g
    dtype = eager.compute_dtype(p)
    return g.to(dtype.to_complex() if g.is_complex() else dtype) / scale.item()


class _Rows:
    """The tensors of one call as `cpu.cpp` wants them, and those it cannot take."""

    WIDTH = 12

    def __init__(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        moments: Sequence[Sequence[eager.Moment]],
    ) -> None:
        self.indices: list[int] = []
        self.others: list[int] = []
        self.quantized = False
        self.alive: list[Tensor] = []  # whatever the table points into
        self.written: list[Tensor] = []
        self.table: list[int] = []
        for i, (param, grad, *state) in enumerate(zip(params, grads, *moments, strict=True)):
            row = self._row(param, grad, state)
            if row is None:
                self.others.append(i)
            else:
                self.indices.append(i)
                self.written.append(param)
                self.table += row

    def _row(self, param: Tensor, grad: Tensor, state: list[Any]) -> list[int] | None:
        p, g = param, grad.resolve_neg()
        if p.is_complex():
            p, g = torch.view_as_real(p), torch.view_as_real(g.resolve_conj())
            state = [torch.view_as_real(m) for m in state]
        dtypes = [DTYPES.get(p.dtype), DTYPES.get(g.dtype)]
        if g.shape != p.shape or not (p.is_contiguous() or dense(p)):
            return None
        if not _laid_out_like(p, g):
            g = torch.empty_strided(p.shape, p.stride(), dtype=g.dtype).copy_(g)
        addresses, scales, length = [p.data_ptr(), g.data_ptr()], [0, 0, 0], 0
        for k, moment in enumerate(state):
            if isinstance(moment, Quantized):
                codes, scale = moment
                if not _in_rows(p, codes, scale):
                    return None
                length = p.stride(0) if p.numel() else 0
                scales[k] = scale.data_ptr()
                dtypes.append(SIGNED if codes.dtype == torch.int8 else UNSIGNED)
                self.alive.append(scale)
                self.quantized = True
            else:
                codes = moment
                dtypes.append(DTYPES.get(codes.dtype))
            if codes.shape != p.shape or not _laid_out_like(p, codes):
                return None
            addresses.append(codes.data_ptr())
            self.alive.append(codes)
        packed = 0
        for k, dtype in enumerate(dtypes):
            if dtype is None:
                return None
            packed |= dtype << 4 * k
        self.alive += [p, g]
        addresses += [0] * (5 - len(addresses))
        return [*addresses, *scales, p.numel(), length, packed, 0]

    def set_keys(self, keys: Iterable[int]) -> None:
        """The keys of the random bits, one a row."""
        self.table[self.WIDTH - 1 :: self.WIDTH] = keys

    def step(self, kind: int, corrections: "array[float]", settings: "array[float]") -> None:
        if not self.indices:
            return
        library = _library()
        if library is None:
            raise RuntimeError("the fused CPU kernels are not available")
        table = array("Q", self.table)
        columns = [column.buffer_info()[0] for column in (table, corrections, settings)]
        library.sgdf_step(kind, len(self.indices), *columns, torch.get_num_threads())
        # Autograd has to see that these are no longer the values it saved.
        torch.autograd.graph.increment_version(self.written)


def _laid_out_like(p: Tensor, t: Tensor) -> bool:
    """Whether the same index is the same place in memory; they have one shape."""
    strides = p.stride(), t.stride()
    if strides[0] == strides[1] or not p.numel():
        return True
    return all(n == 1 or a == b for n, a, b in zip(p.shape, *strides, strict=True))


def _in_rows(p: Tensor, codes: Tensor, scale: Tensor) -> bool:
    """Whether the blocks of 8-bit codes follow one another as `cpu.cpp` counts them."""
    return (
        p.dim() > 0
        and p.stride(0) * p.shape[0] == p.numel()
        and codes.dtype in (torch.int8, torch.uint8)
        and scale.dtype == torch.float32
        and scale.is_contiguous()
        and scale.shape == (p.shape[0], blocks_per_row(p))
    )

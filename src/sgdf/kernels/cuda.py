"""CUDA: the optimizers' updates as one Triton launch over all tensors of a kind.

A `Plan` is what a group's launches need and the next step can reuse: tables of sizes and
addresses on the device. It is made again when, and only when, an address, a size or a dtype of
parameters or state changed; new addresses of gradients alone are a copy of 8 bytes a tensor. The
step counters, the learning rate (if it is a tensor) and GradScaler's scale are read on the
device, so nothing waits for the GPU and a CUDA graph can hold the whole step.
"""

import functools
import importlib.util
import math
import operator
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sgdf.kernels import changes, eager
from sgdf.kernels.quantized import BLOCK as QUANTUM
from sgdf.kernels.quantized import Quantized, dense
from sgdf.kernels.rounding import GOLDEN, tensor_seed

SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 1024  # elements of a program
BLOCKS = 16  # 8-bit blocks of a program, one after the other
SPARES = 4  # gradient tables at hand for captures, which cannot allocate host memory

Row: TypeAlias = tuple[int, Tensor, Tensor, Any, tuple[Any, ...]]
Columns: TypeAlias = tuple[list[Any], ...]


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def suits(params: Sequence[Tensor]) -> bool:
    """Whether these kernels can update every one of the parameters."""
    return (
        not torch.compiler.is_compiling()
        and len(params) > 0
        and has_triton()
        and all(p.is_cuda and p.dtype in SUPPORTED for p in params)
    )


# --- the updates ------------------------------------------------------------------------------


def filter_fused(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Any],
    exp_vars: Sequence[Any],
    exp_avg_sqs: Sequence[Any] = (),
    *,
    plan: "Plan",
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
    """One step of SGDF or, with second moments, FilterAdam; `plan` was made for these columns."""
    from sgdf.kernels import triton_filter as device

    beta1, beta2 = betas
    moments = [exp_avgs, exp_vars] + ([exp_avg_sqs] if exp_avg_sqs else [])
    plan.advance(found_inf)
    for launch in plan.launches:
        arguments = {
            **launch.common(lr, weight_decay, maximize, decoupled_weight_decay),
            **launch.scaling(grad_scale, found_inf),
            "log_beta1": math.log(beta1) if beta1 > 0 else -math.inf,
            "log_beta2": math.log(beta2) if beta2 > 0 else -math.inf,
            "factor": (1 - beta1) / (1 + beta1),
            "beta1": beta1,
            "beta2": beta2,
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
            "eps": eager.positive_eps(eps, torch.float32),
            "adam_eps": eps,
            "scale": gain_scale,
            "power": gain_power,
            "ADAM": len(moments) == 3,
            "POWER": {1: 0, 0.5: 1}.get(gain_power, 2),
            "CORRECTION": correction,
            "STOCHASTIC": stochastic_rounding and launch.p_dtype == torch.bfloat16,
        }
        if launch.quantized:
            arguments |= {"WHOLE_ROWS": launch.whole_rows, "BLOCKS": BLOCKS, "num_warps": 1}
            device.filter_kernel_8bit[(launch.blocks,)](**arguments)
        else:
            arguments |= {"S": launch.s_dtype, "BLOCK": BLOCK, "num_warps": 4}
            device.filter_kernel[(launch.blocks,)](**arguments)
    for i in plan.strided if not _skipped(found_inf) else ():
        p, g, *state = ([column[i]] for column in (params, grads, steps, *moments))
        eager.filter_loop(
            p,
            _unscaled(g, grad_scale),
            *state,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            gain_scale=gain_scale,
            gain_power=gain_power,
            correction=correction,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            capturable=True,
            differentiable=False,
            stochastic_rounding=stochastic_rounding,
            rounding_seed=rounding_seed + i * GOLDEN,  # the bits of row i, not of a first row
        )


def momentum_fused(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    plan: "Plan",
    lr: eager.Scalar,
    beta: float,
    mu: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    from sgdf.kernels import triton_filter as device

    for launch in plan.launches:
        device.momentum_kernel[(launch.blocks,)](
            **launch.common(lr, weight_decay, maximize, decoupled_weight_decay),
            **launch.scaling(grad_scale, found_inf),
            beta=beta,
            mu=mu,
            S=launch.s_dtype,
            BLOCK=BLOCK,
            num_warps=4,
        )
    if plan.strided and not _skipped(found_inf):
        rows = [[column[i] for i in plan.strided] for column in (params, grads, buffers)]
        rows[1] = _unscaled(rows[1], grad_scale)
        eager.momentum_loop(
            *rows,
            lr=lr,
            beta=beta,
            mu=mu,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )


def _skipped(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf)


def _unscaled(grads: list[Tensor], scale: Tensor | None) -> list[Tensor]:
    return grads if scale is None else [g.float() / scale for g in grads]


# --- what stays from step to step -------------------------------------------------------------


class Plan:
    """The launches for the columns of one group, and whether they still hold."""

    def __init__(self, columns: Columns, counts_steps: bool, seed: int = 0) -> None:
        params, grads, *state = columns
        if params[0].is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the fused step is new to these parameters or this state: run one step before "
                "capturing it in a CUDA graph"
            )
        steps = state.pop(0) if counts_steps else None
        kinds: dict[Any, list[Row]] = {}
        self.strided = []  # rows that are no dense stretch of memory: the loop's
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            moments = tuple(column[i] for column in state)
            if not all(t.stride() == p.stride() for t in _elementwise(moments)) or not dense(p):
                self.strided.append(i)
            elif p.numel():
                formats = [(type(m), _dtype(m)) for m in moments]
                kind = (p.device, p.dtype, g.dtype, *formats[0])
                kinds.setdefault(kind, []).append((i, p, g, steps and steps[i], moments))
        self.launches = [Launch(rows, seed) for rows in kinds.values()]
        self.columns = columns
        self.signature = _signature(columns)
        # The loop counts the steps of its own rows.
        self.counters = [step for i, step in enumerate(steps or ()) if i not in self.strided]
        self.counter_block = _as_one(self.counters)
        self.all_states: list[Any] | None = None  # until `remember`
        self.watch: changes.Watch | None = None
        self.point_at(grads)

    def point_at(self, grads: list[Tensor]) -> None:
        for launch in self.launches:
            launch.point_at(grads if launch.n == len(grads) else [grads[i] for i in launch.indices])

    def advance(self, found_inf: Tensor | None) -> None:
        """Count a step of every tensor, unless it is going to be skipped."""
        one = 1 if found_inf is None else (found_inf == 0).float().squeeze()
        if self.counter_block is not None:
            self.counter_block.add_(one)
        elif self.counters:
            torch._foreach_add_(self.counters, one)

    def release(self) -> None:
        """Let go of the gradients: their memory is the next ones', once the user is done."""
        self.columns = (self.columns[0], [], *self.columns[2:])
        for launch in self.launches:
            launch.copies = []

    @property
    def captured(self) -> bool:
        return any(launch.captured for launch in self.launches)

    def suits(self, columns: Columns) -> bool:
        """Whether only the gradients' addresses are new; if so, point at them."""
        if self.signature != _signature(columns):
            return False
        self.columns = columns
        self.point_at(columns[1])
        return True

    # --- from step to step: a few microseconds, so all in C, by map -----------------------------

    def remember(self, state: dict[Tensor, dict[str, Any]]) -> None:
        """Take note of what `renewed` has to find unchanged."""
        params, grads, *_ = self.columns
        self.all_states = list(state.values())
        self.states = [state[p] for p in params]
        self.values = [value for s in self.states for value in s.values()]
        # Counters are slices of a tensor of ours: nobody but us moves their memory.
        held = [t for s in self.states for key, t in s.items() if key != "step"]
        self.movable = params + [t for t in held if isinstance(t, Tensor)]
        self.addresses = list(map(Tensor.data_ptr, self.movable))
        self.sizes = list(map(Tensor.numel, grads))
        self.dtypes = list(map(DTYPE, grads))
        if params[0].is_cuda:
            changes.start()

    def renewed(self, state: dict[Tensor, dict[str, Any]], params: list[Tensor]) -> Columns | None:
        """The columns for this step's gradients; None if anything else is not as it was."""
        if (
            self.all_states is None
            or len(state) != len(self.all_states)
            or len(params) != len(self.sizes)
            or not all(map(operator.is_, params, self.columns[0]))
            or not all(map(operator.is_, state.values(), self.all_states))
        ):
            return None
        if self.watch is not None and self._is_in_place(self.watch):
            return self.columns
        grads: list[Any] = [p.grad for p in params]
        if not self._fits(grads):
            return None
        self.point_at(grads)
        self.columns = (self.columns[0], grads, *self.columns[2:])
        if self.watch is not None:
            self.watch.note()
        elif not self.strided:
            self.watch = changes.of(self.columns[0], self.states)
        return self.columns

    def _is_in_place(self, seen: "changes.Watch") -> bool:
        """Whether all is where it was, but for gradients, which are then pointed at.

        So no gradient has to become an object of Python: the table has their addresses.
        """
        verdict = seen.look()
        if verdict == changes.SAME:
            for launch in self.launches:
                launch.keep_if_captured()
            return True
        if verdict == changes.MOVED and len(self.launches) == 1:
            (launch,) = self.launches
            if launch.n == len(self.sizes):
                launch.point_at_addresses(seen.grads_now.tolist())
                seen.note()
                return True
        return False

    def _fits(self, grads: list[Any]) -> bool:
        """The same in Python. A gradient has its parameter's size and dtype: it tells both."""
        values = map(dict.values, self.states)
        return (
            all(map(operator.is_, chain.from_iterable(values), self.values))
            and list(map(Tensor.data_ptr, self.movable)) == self.addresses
            and list(map(Tensor.numel, grads)) == self.sizes
            and list(map(DTYPE, grads)) == self.dtypes
        )

    made_for: tuple[Any, ...]
    params: list[Tensor]


DTYPE = operator.attrgetter("dtype")


class Launch:
    """Tensors of one device, one set of dtypes and one format of the state."""

    def __init__(self, rows: list[Row], seed: int) -> None:
        from sgdf.kernels import triton_filter as device

        indices, params, grads, steps, states = zip(*rows, strict=True)
        self.indices = indices
        self.n = len(rows)
        self.strides = [p.stride() for p in params]
        self.contiguous = [p.is_contiguous() for p in params]
        self.device = params[0].device
        self.p_dtype, self.g_dtype = params[0].dtype, _triton_dtype(grads[0].dtype)
        self.quantized = isinstance(states[0][0], Quantized)
        self.s_dtype = None if self.quantized else _triton_dtype(states[0][0].dtype)

        table = np.zeros((device.TABLE_ROWS, self.n), dtype=np.int64)
        sizes = np.array([p.numel() for p in params], dtype=np.int64)
        rows_of = np.array([p.shape[0] if p.dim() else 1 for p in params], dtype=np.int64)
        table[device.NUMEL.value] = sizes
        table[device.ROW_LENGTH.value] = lengths = sizes // rows_of
        table[device.SEED.value] = [tensor_seed(seed, i) for i in indices]
        table[device.PARAM.value] = [p.data_ptr() for p in params]
        if steps[0] is not None:
            table[device.STEP.value] = [step.data_ptr() for step in steps]
        for k, column in enumerate(zip(*states, strict=True)):
            if self.quantized:
                table[device.MOMENTS.value + k] = [m.codes.data_ptr() for m in column]
                table[device.SCALES.value + k] = [m.scale.data_ptr() for m in column]
            else:
                table[device.MOMENTS.value + k] = [m.data_ptr() for m in column]
        if self.quantized:
            blocks = -(-(rows_of * -(-lengths // QUANTUM)) // BLOCKS)
        else:
            blocks = -(-sizes // BLOCK)
        table[device.FIRST_BLOCK.value] = np.cumsum(blocks) - blocks
        self.blocks = int(blocks.sum())
        self.whole_rows = bool((lengths % QUANTUM == 0).all())
        wide = table[[device.PARAM.value, *range(device.MOMENTS.value, device.SCALES.value)]]
        self.aligned_state = bool((wide % 16 == 0).all())

        self.table = self._to_device(table)
        self.block_tensor = self._to_device(np.repeat(np.arange(self.n, dtype=np.int32), blocks))
        self.nothing = torch.zeros((), dtype=torch.float32, device=self.device)
        self.addresses: list[int] = []
        spares = SPARES if self.device.type == "cuda" else 0
        self.spares = [self._new_spare() for _ in range(spares)]
        self.captured: list[Any] = []
        self.copies: list[Tensor] = []  # of gradients, alive until the kernel has been launched

    def point_at(self, grads: list[Tensor]) -> None:
        """Have this step's gradients in the table, whatever their addresses."""
        if list(map(Tensor.is_contiguous, grads)) != self.contiguous or not all(self.contiguous):
            self.copies = grads = [
                _in_layout(g, s) for g, s in zip(grads, self.strides, strict=True)
            ]
        self.point_at_addresses(list(map(Tensor.data_ptr, grads)))

    def point_at_addresses(self, addresses: list[int]) -> None:
        if addresses == self.addresses:
            self.keep_if_captured()
            return
        values = np.array(addresses, dtype=np.int64)
        self.addresses = addresses
        self.aligned = self.aligned_state and bool((values % 16 == 0).all())
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if not self.spares:
                raise RuntimeError("run one step between captures of a fused step")
            host, self.grad_table = self.spares.pop()
            host.numpy()[:] = values
            self.grad_table.copy_(host, non_blocking=True)
            self.captured.append((host, self.grad_table))  # a replay reads both again
        else:
            self.grad_table = self._to_device(values)
            if self.device.type == "cuda" and len(self.spares) < SPARES:
                self.spares.append(self._new_spare())

    def keep_if_captured(self) -> None:
        """A graph that is captured with this table reads it again at every replay."""
        kept = any(table is self.grad_table for _, table in self.captured)
        if not kept and self.table.is_cuda and torch.cuda.is_current_stream_capturing():
            self.captured.append((None, self.grad_table))

    def common(
        self, lr: eager.Scalar, weight_decay: float, maximize: bool, decoupled: bool
    ) -> dict[str, Any]:
        on_device = isinstance(lr, Tensor) and lr.device.type == "cuda"
        return {
            "table": self.table,
            "grads": self.grad_table,
            "block_tensor": self.block_tensor,
            "n": self.n,
            "lr_at": lr if on_device else self.nothing,
            "lr": 0.0 if on_device else float(lr),
            "weight_decay": weight_decay,
            "P": _triton_dtype(self.p_dtype),
            "G": self.g_dtype,
            "DECAY": weight_decay != 0,
            "DECOUPLED": decoupled,
            "MAXIMIZE": maximize,
            "LR_ON_DEVICE": on_device,
            "ALIGNED": self.aligned,
        }

    def scaling(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> dict[str, Any]:
        """GradScaler's scale and verdict, read on the device."""
        return {
            "grad_scale": self.nothing if grad_scale is None else grad_scale.to(self.device),
            "found_inf": self.nothing if found_inf is None else found_inf.to(self.device),
            "SCALED": grad_scale is not None,
            "SKIP_INF": found_inf is not None,
        }

    def _to_device(self, values: np.ndarray) -> Tensor:
        host = torch.from_numpy(values)
        if self.device.type != "cuda":
            return host
        return host.pin_memory().to(self.device, non_blocking=True)

    def _new_spare(self) -> tuple[Tensor, Tensor]:
        host = torch.empty(self.n, dtype=torch.int64, pin_memory=True)
        return host, torch.empty(self.n, dtype=torch.int64, device=self.device)


def _in_layout(g: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The gradient in its parameter's layout: itself, or else a copy."""
    if g.stride() == strides:
        return g
    return torch.empty_strided(g.shape, strides, dtype=g.dtype, device=g.device).copy_(g)


def _signature(columns: Columns) -> list[Any]:
    params, grads, *state = columns
    flat = [
        t for column in state for m in column for t in (m if isinstance(m, Quantized) else (m,))
    ]
    return [
        *map(Tensor.data_ptr, params + flat),
        *map(Tensor.numel, params),
        *map(DTYPE, params + grads),
    ]


def _as_one(counters: list[Tensor]) -> Tensor | None:
    """The step counters as one tensor, if that is what they are slices of."""
    if not counters:
        return None
    first, n = counters[0], len(counters)
    addresses = [counter.data_ptr() for counter in counters]
    if addresses != [first.data_ptr() + 4 * i for i in range(n)]:
        return None
    if first.untyped_storage().nbytes() < 4 * (first.storage_offset() + n):
        return None
    return first.as_strided((n,), (1,))


def _elementwise(state: tuple[Any, ...]) -> list[Tensor]:
    return [m.codes if isinstance(m, Quantized) else m for m in state]


def _dtype(moment: Any) -> torch.dtype:
    return moment.codes.dtype if isinstance(moment, Quantized) else moment.dtype


@functools.cache
def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {
        torch.float32: tl.float32,
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
        torch.float64: tl.float64,
    }[dtype]

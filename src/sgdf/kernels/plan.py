"""What a fused step on CUDA keeps from step to step: tables of sizes and addresses on the device.

A `Plan` holds the tables for the tensors of one parameter group. It is made again when, and only
when, an address, a size or a dtype of parameters or state has changed. If only gradients have new
addresses, that costs a copy of 8 bytes per tensor. A `PlanCache` holds the plans of one optimizer.

To compare thousands of addresses in Python takes longer than the GPU works on a small model, so
`changes.cpp` does it (`ChangeDetector`). It is compiled in the background when the first plan is
made, which takes some seconds with torch's headers. Until then, and if it cannot be compiled, the
plan compares in Python.
"""

import contextlib
import ctypes
import functools
import operator
import subprocess
import sys
import sysconfig
import threading
from array import array
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from sgdf.kernels import build
from sgdf.kernels.quantized import BLOCK as QUANTUM
from sgdf.kernels.quantized import Quantized, dense, has_format
from sgdf.kernels.rounding import tensor_seed
from sgdf.kernels.work import check_consistent, has_memory, parts

BLOCK = 1024  # elements per program
BLOCKS = 16  # 8-bit blocks per program, one after the other
SPARES = 4  # gradient tables allocated ahead for captures, which cannot allocate host memory
PLANS = 4  # per group, for gradients that come and go
DTYPE = operator.attrgetter("dtype")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

#: A tensor in a launch: index in its group, parameter, gradient, step, m, s, v; None: not kept.
PlanRow: TypeAlias = tuple[int, Tensor, Tensor, Any, Any, Any, Any]
#: Lists with an entry per parameter: params, grads, steps, m, s, v; None for one not kept.
Columns: TypeAlias = tuple[Any, Any, Any, Any, Any, Any]
State: TypeAlias = dict[Tensor, dict[str, Any]]


class Plan:
    """The launches for the columns of one group, and whether they are still valid."""

    def __init__(self, columns: Columns, seed: int = 0) -> None:
        params, grads, steps, *moments = columns
        if params[0].is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the fused step is new to these parameters or this state: run one step before "
                "capturing it in a CUDA graph"
            )
        kinds: dict[Any, list[PlanRow]] = {}
        self.strided = []  # tensors with gaps in memory and other exceptions: `loop` updates them
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            row = (i, p, g, *(column and column[i] for column in (steps, *moments)))
            if p.device.type != params[0].device.type or not _suits(row):
                self.strided.append(i)
            elif p.numel():
                m = row[4]
                kind = (p.device, p.dtype, g.dtype, type(m), parts(m)[0].dtype)
                kinds.setdefault(kind, []).append(row)
        check_consistent(params, grads, moments, self.strided)
        self.launches = [Launch(rows, seed) for rows in kinds.values()]
        self.columns = columns
        self.signature = _signature(columns)
        # The loop increments the counters of its own tensors.
        self.counters = [step for i, step in enumerate(steps or ()) if i not in self.strided]
        self.counter_block = _contiguous_counters(self.counters)
        self.all_states: list[Any] | None = None  # until `remember`
        self.detector: ChangeDetector | None = None
        self.set_gradients(grads)

    def set_gradients(self, grads: list[Tensor]) -> None:
        """Write the addresses of this step's gradients into the tables."""
        for launch in self.launches:
            mine = grads if launch.n == len(grads) else [grads[i] for i in launch.indices]
            launch.set_gradients(mine)

    def advance(self, found_inf: Tensor | None) -> None:
        """Increment all step counters, unless the step is going to be skipped."""
        one = 1 if found_inf is None else (found_inf == 0).float().squeeze()
        if self.counter_block is not None:
            self.counter_block.add_(one)
        elif self.counters:
            torch._foreach_add_(self.counters, one)

    def release(self) -> None:
        """Drop the gradients, so that their memory is free for the next ones."""
        self.columns = (*self.columns[:1], [], *self.columns[2:])
        for launch in self.launches:
            launch.copies = []

    @property
    def captured(self) -> bool:
        return any(launch.captured for launch in self.launches)

    def adapt_to(self, columns: Columns) -> bool:
        """Take over new gradients; False if anything but their addresses is new."""
        if self.signature != _signature(columns):
            return False
        self.columns = columns
        self.set_gradients(columns[1])
        return True

    # --- from step to step: a few microseconds, so all in C, by map -----------------------------

    def remember(self, state: State) -> None:
        """Record what `refresh` has to find unchanged."""
        params, grads, *_ = self.columns
        self.all_states = list(state.values())
        self.states = [state[p] for p in params]
        self.values = [value for s in self.states for value in s.values()]
        # Counters are slices of a tensor of ours: nobody else moves their memory.
        held = [t for s in self.states for key, t in s.items() if key != "step"]
        self.movable = params + [t for t in held if isinstance(t, Tensor)]
        self.addresses = list(map(Tensor.data_ptr, self.movable))
        self.sizes = list(map(Tensor.numel, grads))
        self.dtypes = list(map(DTYPE, grads))
        if params[0].is_cuda:
            compile_in_background()

    def refresh(self, state: State, params: list[Tensor]) -> bool:
        """Take over this step's gradients; False if anything else has changed."""
        if (
            self.all_states is None
            or len(state) != len(self.all_states)
            or len(params) != len(self.sizes)
            or not all(map(operator.is_, params, self.columns[0]))
            or not all(map(operator.is_, state.values(), self.all_states))
        ):
            return False
        if self.detector is not None and self._unchanged(self.detector):
            return True
        grads: list[Any] = [p.grad for p in params]
        if not self._fits(grads):
            return False
        self.set_gradients(grads)
        self.columns = (*self.columns[:1], grads, *self.columns[2:])
        if self.detector is not None:
            self.detector.take_snapshot()
        elif not self.strided:
            self.detector = new_detector(self.columns[0], self.states)
        return True

    def _unchanged(self, detector: "ChangeDetector") -> bool:
        """Whether only gradients have moved; their new addresses go into the table.

        The detector has the addresses, so no gradient has to become a Python object.
        """
        verdict = detector.compare()
        if verdict == UNCHANGED:
            for launch in self.launches:
                launch.keep_if_captured()
            return True
        if verdict == GRADIENTS_MOVED and len(self.launches) == 1:
            (launch,) = self.launches
            if launch.n == len(self.sizes):
                launch.set_addresses(detector.gradient_addresses())
                detector.take_snapshot()
                return True
        return False

    def _fits(self, grads: list[Any]) -> bool:
        """The same check in Python.

        A new size or dtype of a parameter shows in its gradient or its address.
        """
        values = map(dict.values, self.states)
        return (
            all(map(operator.is_, chain.from_iterable(values), self.values))
            and list(map(Tensor.data_ptr, self.movable)) == self.addresses
            and list(map(Tensor.numel, grads)) == self.sizes
            and list(map(DTYPE, grads)) == self.dtypes
        )


class Launch:
    """The table for tensors of one device, one set of dtypes and one format of the state."""

    def __init__(self, rows: list[PlanRow], seed: int) -> None:
        indices, params, grads, steps, *moments = zip(*rows, strict=True)
        self.indices = indices
        self.n = len(rows)
        self.strides = [p.stride() for p in params]
        self.contiguous = [p.is_contiguous() for p in params]
        self.device = params[0].device
        self.p_dtype, self.g_dtype = params[0].dtype, triton_dtype(grads[0].dtype)
        self.quantized = isinstance(moments[0][0], Quantized)
        self.m_dtype = triton_dtype(parts(moments[0][0])[0].dtype)
        self.s_dtype = triton_dtype(torch.uint8) if self.quantized else self.m_dtype
        self._write_table(params, steps, moments, seed)
        self.placeholder = torch.zeros((), dtype=torch.float32, device=self.device)
        self.addresses: list[int] = []
        spares = SPARES if self.device.type == "cuda" else 0
        self.spares = [self._new_spare() for _ in range(spares)]
        self.captured: list[Any] = []  # tables that a CUDA graph reads again at every replay
        self.copies: list[Tensor] = []  # of gradients, alive until the kernel has been launched

    def _write_table(
        self, params: tuple[Tensor, ...], steps: tuple[Any, ...], moments: list[Any], seed: int
    ) -> None:
        from sgdf.kernels import triton_filter as device

        table = np.zeros((device.TABLE_ROWS, self.n), dtype=np.int64)
        sizes = np.array([p.numel() for p in params], dtype=np.int64)
        rows_of = np.array([p.shape[0] if p.dim() else 1 for p in params], dtype=np.int64)
        table[device.NUMEL.value] = sizes
        table[device.ROW_LENGTH.value] = lengths = sizes // rows_of
        table[device.SEED.value] = [tensor_seed(seed, i) for i in self.indices]
        table[device.PARAM.value] = [p.data_ptr() for p in params]
        if steps[0] is not None:
            table[device.STEP.value] = [step.data_ptr() for step in steps]
        for k, column in enumerate(moments):
            if column[0] is not None:
                table[device.MOMENTS.value + k] = [parts(x)[0].data_ptr() for x in column]
            if isinstance(column[0], Quantized):
                table[device.SCALES.value + k] = [x.scale.data_ptr() for x in column]
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

    def set_gradients(self, grads: list[Tensor]) -> None:
        """Write the addresses of gradients, or of copies in their parameters' layout."""
        if list(map(Tensor.is_contiguous, grads)) != self.contiguous or not all(self.contiguous):
            self.copies = grads = [
                _in_layout(g, s) for g, s in zip(grads, self.strides, strict=True)
            ]
        self.set_addresses(list(map(Tensor.data_ptr, grads)))

    def set_addresses(self, addresses: list[int]) -> None:
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
            self.captured.append((host, self.grad_table))
        else:
            self.grad_table = self._to_device(values)
            if self.device.type == "cuda" and len(self.spares) < SPARES:
                self.spares.append(self._new_spare())

    def keep_if_captured(self) -> None:
        """Keep the table alive if a graph is being captured: every replay reads it again."""
        kept = any(table is self.grad_table for _, table in self.captured)
        if not kept and self.table.is_cuda and torch.cuda.is_current_stream_capturing():
            self.captured.append((None, self.grad_table))

    def _to_device(self, values: np.ndarray) -> Tensor:
        host = torch.from_numpy(values)
        if self.device.type != "cuda":
            return host
        return host.pin_memory().to(self.device, non_blocking=True)

    def _new_spare(self) -> tuple[Tensor, Tensor]:
        host = torch.empty(self.n, dtype=torch.int64, device="cpu", pin_memory=True)
        return host, torch.empty(self.n, dtype=torch.int64, device=self.device)


class GroupPlans(NamedTuple):
    """The plans of one parameter group, the one used last first."""

    params: list[Tensor]  # the group's own list: while it lives, no other list has its id
    settings: tuple[Any, ...]  # that the plans were made for
    plans: list[Plan]


class PlanCache:
    """The plans of one optimizer, by the id of a group's list of parameters."""

    def __init__(self) -> None:
        self.groups: dict[int, GroupPlans] = {}
        self._captured: list[Plan] = []  # evicted, but a CUDA graph may still replay them

    def refresh(self, params: list[Tensor], settings: tuple[Any, ...], state: State) -> Plan | None:
        """The group's last plan with the gradients of this step, if it is still valid."""
        group = self.groups.get(id(params))
        if group is None:
            return None
        if group.settings != settings:
            del self.groups[id(params)]
            return None
        try:
            return group.plans[0] if group.plans[0].refresh(state, params) else None
        except (TypeError, RuntimeError):  # a gradient is None or sparse
            return None

    def get(
        self,
        params: list[Tensor],
        settings: tuple[Any, ...],
        columns: Columns,
        state: State,
        seed: int = 0,
    ) -> Plan:
        """A plan for these columns: an older one that fits them, or a new one."""
        group = self.groups.get(id(params))
        for i, plan in enumerate(group.plans if group else ()):
            if plan.adapt_to(columns):
                group.plans.insert(0, group.plans.pop(i))  # type: ignore[union-attr]
                return plan
        complete = len(columns[0]) == len(params) and type(params[0]) in (Tensor, Parameter)
        if complete and columns[2] is not None:
            # The counters as slices of one tensor, so that one addition increments them all.
            steps = list(torch.stack(columns[2]).unbind())
            for p, step in zip(params, steps, strict=True):
                state[p]["step"] = step
            columns = (*columns[:2], steps, *columns[3:])
        plan = Plan(columns, seed)
        if complete:
            plan.remember(state)
        self._add(params, settings, plan)
        return plan

    def _add(self, params: list[Tensor], settings: tuple[Any, ...], plan: Plan) -> None:
        """Put a plan first among those of its group, and evict the oldest."""
        group = self.groups.setdefault(id(params), GroupPlans(params, settings, []))
        group.plans.insert(0, plan)
        self._captured += [old for old in group.plans[PLANS:] if old.captured]
        del group.plans[PLANS:]


def _in_layout(g: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The gradient in its parameter's layout, copied if need be."""
    if g.stride() == strides:
        return g
    return torch.empty_strided(g.shape, strides, dtype=g.dtype, device=g.device).copy_(g)


def _signature(columns: Columns) -> list[Any]:
    """What a plan depends on, but for the addresses of gradients."""
    params, grads, *state = columns
    flat = [t for column in state if column is not None for m in column for t in parts(m)]
    return [
        *map(Tensor.data_ptr, params + flat),
        *map(Tensor.numel, params + flat),
        *map(DTYPE, params + grads + flat),
    ]


def _suits(row: PlanRow) -> bool:
    """Whether the kernels can work with the addresses of these tensors."""
    _, p, g, step, *kept = row
    moments = [moment for moment in kept if moment is not None]
    flat = [t for moment in moments for t in parts(moment)]
    steps = [] if step is None else [step]
    if not all(t.device == p.device and has_memory(t) for t in (p, g, *steps, *flat)):
        return False
    if any(t.dtype != torch.float32 or t.numel() != 1 for t in steps) or g.shape != p.shape:
        return False
    elementwise = [parts(moment)[0] for moment in moments]
    if not dense(p) or any(t.stride() != p.stride() or t.shape != p.shape for t in elementwise):
        return False
    if isinstance(moments[0], Quantized):
        return all(isinstance(moment, Quantized) and has_format(p, moment) for moment in moments)
    dtypes = {t.dtype for t in flat}
    return len(dtypes) == 1 and not {g.dtype, *dtypes}.difference(DTYPES)


def _contiguous_counters(counters: list[Tensor]) -> Tensor | None:
    """The step counters as one tensor, if they are consecutive slices of one."""
    if not counters:
        return None
    first, n = counters[0], len(counters)
    addresses = [counter.data_ptr() for counter in counters]
    if addresses != [first.data_ptr() + 4 * i for i in range(n)]:
        return None
    if first.untyped_storage().nbytes() < 4 * (first.storage_offset() + n):
        return None
    return first.as_strided((n,), (1,))


@functools.cache
def triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {
        torch.float32: tl.float32,
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
        torch.float64: tl.float64,
        torch.int8: tl.int8,
        torch.uint8: tl.uint8,
    }[dtype]


# --- detecting changes in C++ -------------------------------------------------------------------

SOURCE = Path(__file__).with_name("changes.cpp")
FLAGS = [
    "-O2",
    "-fPIC",
    "-shared",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
]
STANDARDS = ("-std=c++20", "-std=c++17")  # newest first: torch's headers need it

UNCHANGED, GRADIENTS_MOVED, CHANGED = range(3)  # nothing, only gradients' addresses, or more

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
    library.sgdf_collect_addresses.argtypes = [anything, anything, pointer, integer, pointer]
    library.sgdf_collect_addresses.restype = integer
    return library


class ChangeDetector:
    """Compares parameters, their gradients and their state with a snapshot of them."""

    def __init__(self, library: ctypes.PyDLL, params: list[Tensor], states: list[Any]) -> None:
        self.params, self.states = params, states
        self._sgdf_collect_addresses = library.sgdf_collect_addresses
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
        return int(self._sgdf_collect_addresses(self.params, self.states, facts, room, gradients))


def new_detector(params: list[Tensor], states: list[Any]) -> ChangeDetector | None:
    """A detector with its first snapshot, if the C++ has been compiled by now."""
    return None if _library is None else ChangeDetector(_library, params, states)

"""A step on matrices, those of one shape together, by the rule of `sgdf.matrix`.

Stacks of equal shapes go through batched products, QR and Newton-Schulz; a stack is cut into
chunks, which bounds the memory of the temporaries. Products of the basis are in full float32 (in
float64 for float64 parameters). Newton-Schulz is in bfloat16 where the device multiplies it fast:
its result is rough anyway.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgdf.filter import LARGEST_8_BIT_UPDATE, at_least, estimate, one_minus_power
from sgdf.kernels import cpu
from sgdf.kernels.loop import RandomBits, _load
from sgdf.kernels.quantized import Quantized, quantize_
from sgdf.kernels.rounding import (
    FOR_PARAMETER,
    FOR_SECOND_MOMENT,
    FOR_TREND,
    FOR_VARIANCE,
    round_to_bfloat16,
)
from sgdf.kernels.work import (
    Moment,
    Scalar,
    compute_dtype,
    increment,
    is_fake,
    lr_on_device_of,
    number_range,
)
from sgdf.matrix import (
    SMALLEST_NORM,
    MatrixSettings,
    MatrixState,
    Sides,
    corrections,
    largest_entry,
    lr_scale,
    refreshed,
    roundoff,
    with_first_gradient,
)

MATRIX = "matrix"  #: the path of a `MatrixWork`
FOR_SLOW_TREND = 0x165667B1
NO_BASIS = Sides()
PURPOSES = {
    "m": FOR_TREND,
    "slow": FOR_SLOW_TREND,
    "s": FOR_VARIANCE,
    "v": FOR_SECOND_MOMENT,
}
#: Entries of a chunk, which bounds the temporaries. On a GPU, what keeps it busy; on a CPU, two
#: matrices of a small transformer: its cores multiply them faster side by side than in turn.
CHUNK = {"cpu": 3 * 2**19, "cuda": 2**23}
#: What fits into the cache of a CPU, where temporaries do not matter.
SMALL_CHUNK = 2**17
#: Temporaries of a step on a CPU in copies of a chunk, beside those of bases: if the averages are
#: made in one pass, and if not.
COPIES, MORE_COPIES = 5.5, 16
#: Rows of a block of a symmetric product on the CPU.
BLOCK = 192


class MatrixRule(NamedTuple):
    """What a step computes: the settings of a parameter group, read once."""

    settings: MatrixSettings
    basis_interval: int = 10
    lr: Scalar = 0.0
    weight_decay: float = 0.0
    maximize: bool = False
    capturable: bool = False
    stochastic_rounding: bool = False
    rounding_seed: int = 0
    stacked: bool = False  #: whether the last two dimensions are the matrix, those before a batch


class Row(NamedTuple):
    """A parameter with its gradient and state."""

    p: Tensor
    g: Tensor
    step: Tensor
    m: Moment
    slow: Moment | None = None
    s: Moment | None = None
    v: Moment | None = None
    basis_step: Tensor | None = None  #: how many gradients L and R have seen
    factors: Sides = Sides()
    basis: Sides = Sides()
    place: int = 0  #: in its group
    turn: int = 0  #: when its basis is refreshed
    shape: tuple[int, ...] = ()  #: of the whole matrix, of which p may be the shard of a process
    team: Any = None  #: the `exchange.Team` of processes that divide the work; None: this one only
    owner: int = 0  #: which of them steps this matrix


class MatrixWork(NamedTuple):
    """One step of one group; an entry of `rows` for every parameter with a gradient."""

    rule: MatrixRule
    rows: list[Row]
    path: str = MATRIX
    plan: None = None


class Scratch(threading.local):
    """Memory for the temporaries of a chunk on a CPU, kept for the next chunk and the next step.

    Without it the allocator hands large blocks back to the system after each chunk, and gets them
    again page by page, which took a tenth of a step. A GPU has a caching allocator.
    """

    MOST = 2**26  #: bytes that are kept

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.used = 0
        self.serves = False

    @contextlib.contextmanager
    def for_chunk(self, p: Tensor) -> Iterator[None]:
        """Serve the calls of `empty`; what they returned is overwritten by the next chunk."""
        self.used, self.serves = 0, p.is_cpu and not is_fake(p)
        try:
            yield
        finally:
            self.serves = False
            size = min(self.used, self.MOST)
            if size > len(self.memory):
                self.memory = self.memory.new_empty(0)  # before there is more
                self.memory = self.memory.new_empty(size)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if not self.serves or device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        first, size = self.used, math.prod(shape) * dtype.itemsize
        self.used += -(-size // 64) * 64  # the width of a cache line
        if self.used > len(self.memory):
            return torch.empty(shape, dtype=dtype, device=device)
        return self.memory[first : first + size].view(dtype).view(shape)

    def empty_like(self, x: Tensor) -> Tensor:
        return self.empty(x.shape, x.dtype, x.device)


scratch = Scratch()


def step_chunk(rule: MatrixRule, rows: list[Row]) -> None:
    """One step of parameters of the same shape, dtype, device and age."""
    with torch.no_grad(), full_float32(rows[0].p), scratch.for_chunk(rows[0].p):
        if builds_basis(rows[0]):
            build_basis(rule, rows, gradients(rule, rows))
        else:
            apply(rule, rows, direction(rule, rows, filtered(rule, rows)))
        count_for_basis(rows)


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows that can be stepped together, in lists of a limited size."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        p, at = row.p, None if row.basis_step is None else float(row.basis_step)
        age = None if not row.step.is_cpu else float(row.step)
        key = (row.shape, p.dtype, p.device, row.g.dtype, age, at)
        groups.setdefault(key, []).append(row)
    most = max((len(group) * math.prod(group[0].shape) for group in groups.values()), default=0)
    for group in groups.values():
        size = size_of_chunk(group[0], most)
        for first in range(0, len(group), size):
            yield group[first : first + size]


def size_of_chunk(row: Row, most: int) -> int:
    """How many rows like this one are stepped together: on a CPU, temporaries are about two copies
    of the shape that has the most entries, or small.
    """
    entries = max(1, math.prod(row.shape))
    if not row.p.is_cpu:
        return max(1, CHUNK["cuda"] // entries)
    kept_as_computed = isinstance(row.m, Tensor) and row.m.dtype == compute_dtype(row.p)
    copies = COPIES if row.s is None and kept_as_computed else MORE_COPIES
    copies += sum(2 * x.numel() / entries for x in row.basis if x is not None)
    fits = min(CHUNK["cpu"], int(2 * most / copies))
    return max(1, SMALL_CHUNK // entries, fits // entries)


@contextlib.contextmanager
def full_float32(p: Tensor) -> Iterator[None]:
    """No TF32 and no bfloat16 in products of float32, whatever the user allows the model: ten bits
    are too few for a basis.
    """
    if not (p.is_cuda or p.is_cpu) or is_fake(p):
        yield
        return
    backend: Any = torch.backends.cuda if p.is_cuda else torch.backends.mkldnn
    with _set(backend.matmul, "bf16" if p.is_cpu and onednn_keeps_float32() else "ieee"):
        yield


@contextlib.contextmanager
def _set(matmul: Any, precision: str) -> Iterator[None]:
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    try:
        yield
    finally:
        matmul.fp32_precision = before


@functools.cache
def onednn_keeps_float32() -> bool:
    """Whether products on this CPU are in full float32 where bfloat16 is allowed.

    The permission sends them from MKL to oneDNN, which is twice as fast on CPUs of AMD. Without
    AMX it has nothing to gain from bfloat16 and does not round; a product shows it.
    """
    onednn: Any = torch.backends.mkldnn
    if not (onednn.is_available() and torch.cpu._is_avx512_supported()):
        return False
    if torch.cpu._is_amx_tile_supported():
        return False
    for side in (32, 128, 384):
        x = torch.full((side, side), 1 + 2**-12, device="cpu")  # 1 in bfloat16
        with _set(onednn.matmul, "bf16"):
            found = torch.stack([x @ x, (x[None] @ x[None])[0], torch.addmm(x, x, x, beta=0.0)])
        wanted = side * (1 + 2**-12) ** 2
        if not (found / wanted - 1).abs().max() < 2**-18:
            return False
    return True


# --- element by element, in the parameters' own coordinates -------------------------------------


def gradients(rule: MatrixRule, rows: Sequence[Row]) -> Tensor:
    """The gradients as one new tensor, clipped, with their sign."""
    p = rows[0].p
    g = _stacked([row.g for row in rows], compute_dtype(p))
    if rule.maximize:
        g.neg_()
    largest = largest_gradient(rule, rows, g.dtype)
    return g.clamp_(-largest, largest)


def largest_gradient(rule: MatrixRule, rows: Sequence[Row], dtype: torch.dtype) -> float:
    """What entries of the gradients are clipped to."""
    entries = math.prod(rows[0].shape)
    return float(largest_entry(rule.settings, entries, 1, number_range(dtype)))


def filtered(rule: MatrixRule, rows: Sequence[Row]) -> list[Tensor]:
    """Update the averages and count the step. The estimates, or for a basis, in whose coordinates
    they are made, the gradients and their trends without bias correction.
    """
    increment([row.step for row in rows])
    if in_one_pass(rule, rows):
        return averages_in_one_pass(rule, rows)
    g = gradients(rule, rows)
    mean = averages(rule, rows, g)
    return [g, mean] if has_basis(rows) else [estimates(rule, rows, g, mean)]


def has_basis(rows: Sequence[Row]) -> bool:
    return rows[0].basis_step is not None


def averages(rule: MatrixRule, rows: Sequence[Row], g: Tensor) -> Tensor:
    """Update the averages, and return the trend."""
    settings = rule.settings
    each = list(g.unbind())
    m = [_load(row.m, g.dtype) for row in rows]
    torch._foreach_lerp_(m, each, 1 - settings.filter.betas[0])
    mean = _stacked(m, g.dtype)
    _store(rule, rows, "m", m)
    if settings.has_slow:
        slow = [_load(row.slow, g.dtype) for row in rows]  # type: ignore[arg-type]
        torch._foreach_lerp_(slow, each, 1 - settings.slow_beta)
        torch._foreach_lerp_(list(mean.unbind()), slow, settings.slow_weight)
        _store(rule, rows, "slow", slow)
    return mean


def in_one_pass(rule: MatrixRule, rows: Sequence[Row]) -> bool:
    """Whether the CPU's compiled function makes what `filtered` returns."""
    if rule.capturable or not (has_basis(rows) or rule.settings.filter.constant_gain):
        return False
    moments = [x for row in rows for x in (row.m, row.slow) if x is not None]
    tensors = [x for x in moments if isinstance(x, Tensor)]
    if len(tensors) < len(moments):
        return False
    return cpu.suits_passes([*tensors, *(x for row in rows for x in (row.p, row.g))])


def averages_in_one_pass(rule: MatrixRule, rows: Sequence[Row]) -> list[Tensor]:
    settings, first = rule.settings, rows[0].g
    numbers = (
        settings.filter.betas[0],
        settings.slow_beta,
        settings.slow_weight,
        largest_gradient(rule, rows, first.dtype),
        -1.0 if rule.maximize else 1.0,
        corrections(settings, *_times(rule, rows, first)).trend,
        settings.filter.gain_scale,
    )
    count = 2 if has_basis(rows) else 1
    shape = (len(rows), *first.shape)
    out = [scratch.empty(shape, first.dtype, first.device) for _ in range(count)]
    for row, *mine in zip(rows, *out, strict=True):
        clipped = mine[0] if count == 2 else None
        cpu.average(row.g, row.m, row.slow, clipped, mine[-1], numbers)  # type: ignore[arg-type]
    return out


def apply(rule: MatrixRule, rows: Sequence[Row], update: Tensor) -> None:
    """Shrink the parameters and take the step; the update is overwritten."""
    params = [row.p for row in rows]
    dtype, lr = update.dtype, lr_on_device_of(params[0], rule.lr)
    shrink, rate = 1 - lr * rule.weight_decay, lr * shape_scale(rule, rows[0].shape)
    if not isinstance(rate, Tensor) and cpu.suits_passes([update, *params]):
        for p, x in zip(params, update, strict=True):
            cpu.descend(p, x, shrink, rate)  # type: ignore[arg-type]
        return
    weights = [p.to(dtype) for p in params]
    if rule.weight_decay:
        torch._foreach_mul_(weights, shrink)
    each = list(update.unbind())
    if isinstance(rate, Tensor):
        torch._foreach_mul_(each, rate)
        torch._foreach_sub_(weights, each)
    else:
        torch._foreach_add_(weights, each, alpha=-rate)
    if weights[0] is params[0]:
        return
    if rule.stochastic_rounding and params[0].dtype == torch.bfloat16:
        for row, w in zip(rows, weights, strict=True):
            bits = _random(rule, row).bits(FOR_PARAMETER, row.p)
            row.p.copy_(round_to_bfloat16(torch.empty_like(row.p, dtype=dtype).copy_(w), bits))
    else:
        torch._foreach_copy_(params, weights)


def _store(rule: MatrixRule, rows: Sequence[Row], name: str, values: Sequence[Tensor]) -> None:
    """Keep the values of a moment, unless they are where it is stored."""
    for row, value in zip(rows, values, strict=True):
        moment = getattr(row, name)
        if isinstance(moment, Quantized):
            bits = _random(rule, row, in_blocks=True).bits(PURPOSES[name], moment.codes)
            quantize_(moment, value, bits)
        elif moment.dtype == torch.bfloat16:
            bits = _random(rule, row).bits(PURPOSES[name], moment)
            wide = torch.empty_like(moment, dtype=torch.float32).copy_(value)
            moment.copy_(round_to_bfloat16(wide, bits))
        elif moment is not value:
            moment.copy_(value)


def _random(rule: MatrixRule, row: Row, in_blocks: bool | None = None) -> RandomBits:
    if in_blocks is None:
        in_blocks = isinstance(row.m, Quantized)
    return RandomBits(rule.rounding_seed, row.place, row.step, in_blocks)


# --- as matrices --------------------------------------------------------------------------------


def as_matrices(x: Tensor, stacked: bool) -> Tensor:
    """A stack of parameters as (batch, rows, columns): a kernel's out x rest, or the experts."""
    return x.reshape(-1, *x.shape[-2:]) if stacked else x.flatten(2)


def _stacked(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """A new contiguous tensor with these along its first dimension."""
    out = scratch.empty((len(tensors), *tensors[0].shape), dtype, tensors[0].device)
    torch._foreach_copy_(list(out.unbind()), list(tensors))
    return out


def builds_basis(row: Row) -> bool:
    """Whether this is the first gradient, which only builds the basis."""
    return row.basis_step is not None and float(row.basis_step) == 0


def build_basis(rule: MatrixRule, rows: Sequence[Row], g: Tensor) -> None:
    """The factors of the first gradient and their eigenvectors."""
    numbers = number_range(g.dtype)
    g = as_matrices(g, rule.stacked)
    state = with_first_gradient(g, MatrixState(None), rule.settings, numbers, torch)
    for name in ("factors", "basis"):
        _unstack(getattr(state, name), [getattr(row, name) for row in rows])


def direction(rule: MatrixRule, rows: Sequence[Row], parts: list[Tensor]) -> Tensor:
    """`sgdf.matrix.direction` of a stack from what `filtered` returns, which is used up.

    The factor for its shape is left to `apply`.
    """
    if not has_basis(rows):
        return orthogonal(rule, parts.pop())
    basis = _stack([row.basis for row in rows])
    update = divided(rule, rows, parts, basis)
    if rule.settings.orthogonalise:
        update = orthogonal(rule, update, basis)
    else:
        x = as_matrices(update, rule.stacked)
        update = _turned(x, scratch.empty_like(x), _transposed(basis))[0].view(update.shape)
        bounded(rows, update)
    refresh(rule, rows)  # after the last use of the basis, of which a stack of one is no copy
    return update


def divided(rule: MatrixRule, rows: Sequence[Row], parts: list[Tensor], basis: Sides) -> Tensor:
    """The estimates divided as Adam's, in the basis, in three tensors of their size."""
    shape = parts[0].shape
    g, mean = (as_matrices(x, rule.stacked) for x in parts)
    parts.clear()
    _update_factors(rule, rows, g)
    g, spare = _turned(g, scratch.empty_like(g), basis)
    mean, spare = _turned(mean, spare, basis)
    update = estimates(rule, rows, g.view(shape), mean.view(shape))
    return bounded(rows, update.div_(_denominator(rule, rows, g.view(shape), spare.view(shape))))


def bounded(rows: Sequence[Row], update: Tensor) -> Tensor:
    """With state in few bits, clipped: a basis spreads the rounding of m to where v is small."""
    moments = (rows[0].m, rows[0].v)
    if any(isinstance(x, Quantized) or x.dtype == torch.bfloat16 for x in moments if x is not None):
        update.clamp_(-LARGEST_8_BIT_UPDATE, LARGEST_8_BIT_UPDATE)
    return update


def _turned(x: Tensor, spare: Tensor, basis: Sides) -> tuple[Tensor, Tensor]:
    """`sgdf.matrix.rotate`, between two tensors: what was asked for comes first."""
    if basis.left is not None:
        x, spare = torch.bmm(basis.left.mT, x, out=spare), x
    if basis.right is not None:
        x, spare = torch.bmm(x, basis.right, out=spare), x
    return x, spare


def _transposed(basis: Sides) -> Sides:
    """With it, `rotate` is `rotate_back`."""
    return Sides(*(None if side is None else side.mT for side in basis))


def estimates(rule: MatrixRule, rows: Sequence[Row], g: Tensor, mean: Tensor) -> Tensor:
    """The filtered gradients, element by element, in the coordinates of s; updates s."""
    of_filter = rule.settings.filter
    scalars = corrections(rule.settings, *_times(rule, rows, g))
    if of_filter.constant_gain:
        return mean.div_(scalars.trend).lerp_(g, of_filter.gain_scale)
    s = [_load(row.s, g.dtype) for row in rows]  # type: ignore[arg-type]
    residual = list((g - mean).unbind())
    torch._foreach_mul_(s, of_filter.betas[1])
    torch._foreach_addcmul_(s, residual, residual, 1 - of_filter.betas[1])
    new = _stacked(s, g.dtype)
    _store(rule, rows, "s", s)
    eps = at_least(of_filter.eps, number_range(g.dtype).smallest, torch)
    scale, power = of_filter.gain_scale, of_filter.gain_power
    return estimate(g, mean, new, scalars, eps=eps, gain_scale=scale, gain_power=power)


def orthogonal(rule: MatrixRule, update: Tensor, basis: Sides = NO_BASIS) -> Tensor:
    """The update orthogonalised and turned back from its basis."""
    settings = rule.settings
    x = as_matrices(update, rule.stacked)
    x = newton_schulz(x, settings.ns_steps, settings.ns_coefficients, basis=basis)
    return x.view(update.shape)


def shape_scale(rule: MatrixRule, shape: tuple[int, ...]) -> float:
    """The factor on lr for the shape of a parameter."""
    if not rule.settings.orthogonalise:
        return 1.0
    rows, columns = shape[-2:] if rule.stacked else (shape[0], math.prod(shape[1:]))
    return lr_scale(rule.settings.adjust_lr_fn, rows, columns)


def _denominator(rule: MatrixRule, rows: Sequence[Row], g: Tensor, out: Tensor) -> Tensor:
    """Update v, and write sqrt(v^) + eps as `sgdf.matrix.denominator` does."""
    beta2 = rule.settings.filter.betas[1]
    _, t2, xp = _times(rule, rows, g)
    v = [_load(row.v, g.dtype) for row in rows]  # type: ignore[arg-type]
    each = list(g.unbind())
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, each, each, 1 - beta2)
    torch._foreach_copy_(list(out.unbind()), v)
    _store(rule, rows, "v", v)
    root = as_matrices(out.div_(one_minus_power(beta2, t2, xp)).sqrt_(), rule.stacked)
    floor = root.amax((-2, -1), keepdim=True).mul_(roundoff(number_range(g.dtype)))
    torch.maximum(root, floor, out=root)
    return out.add_(rule.settings.eps)


def _times(rule: MatrixRule, rows: Sequence[Row], g: Tensor) -> tuple[Scalar, Scalar, Any]:
    """How many gradients the averages have seen, and s and v; and the namespace of either."""
    row = rows[0]
    if rule.capturable or not row.step.is_cpu:
        steps = torch.stack([row.step for row in rows]).to(g.dtype)
        steps = steps.view(-1, *[1] * (g.dim() - 1))
        return steps, steps, torch
    t = float(row.step)
    # The first gradient built the basis: the count of those behind it is that of s and v.
    return t, t if row.basis_step is None else float(row.basis_step), math


def _update_factors(rule: MatrixRule, rows: Sequence[Row], g: Tensor) -> None:
    """Let L and R see the gradients."""
    decay = rule.settings.basis_decay
    for side, (a, b) in enumerate(((g, g.mT), (g.mT, g))):
        factors = [row.factors[side] for row in rows]
        if factors[0] is None:
            continue
        if g.is_cpu and a.shape[-2] > BLOCK:
            each = (x for factor in factors for x in _matrices(factor))
            for x, left, right in zip(each, a, b, strict=True):
                symmetric_product(left, right, x, beta=decay, alpha=1 - decay)
        else:
            stack = _matrices(_joined(factors))
            torch.baddbmm(stack, a, b, beta=decay, alpha=1 - decay, out=stack)
            if len(factors) > 1:
                torch._foreach_copy_(factors, list(stack.view(-1, *factors[0].shape).unbind()))


def symmetric_product(
    a: Tensor, b: Tensor, out: Tensor, *, beta: float = 0.0, alpha: float = 1.0
) -> None:
    """out <- beta out + alpha a b, which is symmetric: the blocks below the diagonal are copied."""
    for first in range(0, len(out), BLOCK):
        end = first + BLOCK
        rest = out[first:end, first:]
        torch.addmm(rest, a[first:end], b[:, first:], beta=beta, alpha=alpha, out=rest)
        out[end:, first:end].copy_(out[first:end, end:].mT)


def refresh(rule: MatrixRule, rows: Sequence[Row]) -> None:
    """Refresh the bases whose turn it is."""
    due = []
    for row in rows:
        assert row.basis_step is not None
        if (int(row.basis_step) + row.turn) % rule.basis_interval == 0:
            due.append(row)
    if due and due[0].p.is_cpu:
        for row in due:  # in less memory, and as fast
            refresh_together(rule, [row])
    elif due:
        refresh_together(rule, due)


def refresh_together(rule: MatrixRule, rows: Sequence[Row]) -> None:
    dtype = compute_dtype(rows[0].p)
    moments: dict[str, Any] = {"s": None, "v": None}
    for name in moments:
        if getattr(rows[0], name) is not None:
            stack = _stacked([_load(getattr(row, name), dtype) for row in rows], dtype)
            moments[name] = as_matrices(stack, rule.stacked)
    factors, basis = (_stack([getattr(row, x) for row in rows]) for x in ("factors", "basis"))
    state = MatrixState(None, None, **moments, factors=factors, basis=basis)
    state = refreshed(state, rule.settings, number_range(dtype), torch)
    for name in moments:
        if moments[name] is not None:
            new = getattr(state, name).reshape(len(rows), *rows[0].shape)
            _store(rule, rows, name, list(new.unbind()))
    _unstack(state.basis, [row.basis for row in rows])


def count_for_basis(rows: Sequence[Row]) -> None:
    """Count the gradient that L and R have seen."""
    counters = [row.basis_step for row in rows if row.basis_step is not None]
    if counters:
        increment(counters)


def _matrices(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """A stack of tensors; of one it is a view."""
    return _stacked(tensors, tensors[0].dtype) if len(tensors) > 1 else tensors[0][None]


def _stack(sides: Sequence[Sides]) -> Sides:
    """The left and the right matrices of all rows, each as one batch."""
    columns = zip(*sides, strict=True)
    return Sides(*(None if x[0] is None else _matrices(_joined(x)) for x in columns))


def _unstack(batch: Sides, sides: Sequence[Sides]) -> None:
    """Copy a batch into the left and the right matrices of the rows."""
    for new, old in zip(batch, zip(*sides, strict=True), strict=True):
        if new is not None:
            torch._foreach_copy_(list(old), list(new.reshape(-1, *old[0].shape).unbind()))


# --- Newton-Schulz ------------------------------------------------------------------------------


def newton_schulz(
    x: Tensor,
    steps: int,
    coefficients: tuple[float, float, float],
    dtype: torch.dtype | None = None,
    basis: Sides = NO_BASIS,
) -> Tensor:
    """`sgdf.matrix.newton_schulz` of a batch, computed in `dtype`, which overwrites x.

    With a basis, Q_L O Q_R^T: the matrix turned back has the singular values that x has.
    """
    dtype = fast_dtype(x) if dtype is None else dtype
    sides = Sides(*(None if side is None else side.to(dtype) for side in basis))
    return x.copy_(_iterate(_normalised(x, dtype), steps, coefficients, sides))


def _normalised(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Divided by its norm, in the dtype; x may be overwritten."""
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_(min=SMALLEST_NORM)
    y = scratch.empty(x.shape, dtype, x.device)
    if x.is_cpu and dtype != x.dtype:  # torch's division into another dtype is not vectorised
        return y.copy_(x.div_(norm))
    return torch.div(x, norm, out=y)


def _iterate(
    y: Tensor, steps: int, coefficients: tuple[float, float, float], basis: Sides
) -> Tensor:
    """The steps on a batch of matrices; y is overwritten.

    A step multiplies Y by P = a + b A + c A^2, with A = Y Y^T, and A by P^2; a tall Y from the
    right, with A = Y^T Y. Where one side is longer, some steps are taken on the small A, and Y is
    multiplied once by the product of their P. Rounding grows with each of them: in bfloat16 two at
    once are as exact as one by one; after three, singular values of 100 and more are left where one
    is 20 times the others. The basis of the shorter side joins the last of these products.
    """
    a, b, c = coefficients
    rows, columns = y.shape[-2:]
    tall, short = rows > columns, min(rows, columns)
    of_short, of_long = basis[::-1] if tall else basis
    square = rows == columns and of_short is None  # neither steps nor a basis to join
    sides = (*y.shape[:-2], short, short)
    products = [scratch.empty(sides, y.dtype, y.device) for _ in range(2 if square else 5)]
    gram, p, half, all_p, spare = products if not square else (*products, y, y, y)
    other = scratch.empty_like(y)
    while steps > 0:
        at_once = min(2, steps) if rows != columns else 1
        steps -= at_once
        last = of_short if steps == 0 else None
        gram_matrices(y, gram)
        # P without its a on the diagonal, beside which bfloat16 would round the rest away.
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=p)
        if at_once == 1 and last is None:
            torch.baddbmm(y, *((y, p) if tall else (p, y)), beta=a, out=other)
        else:
            all_p.copy_(p).diagonal(dim1=-2, dim2=-1).add_(a)
            for _ in range(at_once - 1):
                torch.baddbmm(gram, p, gram, beta=a, out=half)  # P A
                torch.baddbmm(half, half, p, beta=a, out=gram)  # P A P is the next A
                torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=p)
                torch.baddbmm(all_p, p, all_p, beta=a, out=spare)
                all_p, spare = spare, all_p
            if last is not None:
                torch.bmm(*((all_p, last.mT) if tall else (last, all_p)), out=spare)
                all_p = spare
            torch.bmm(*((y, all_p) if tall else (all_p, y)), out=other)
        y, other = other, y
    if of_long is not None:
        torch.bmm(*((of_long, y) if tall else (y, of_long.mT)), out=other)
        y = other
    return y


def gram_matrices(y: Tensor, out: Tensor) -> None:
    """Y Y^T of a batch, or Y^T Y where Y is tall."""
    left, right = (y.mT, y) if y.shape[-2] > y.shape[-1] else (y, y.mT)
    if y.is_cpu and y.shape[-1] != y.shape[-2] and len(out[0]) > BLOCK:
        for each in zip(left, right, out, strict=True):
            symmetric_product(*each)
    else:
        torch.bmm(left, right, out=out)


def fast_dtype(x: Tensor) -> torch.dtype:
    """bfloat16 where the device multiplies it faster than float32; float64 stays as it is."""
    if x.dtype == torch.float64:
        return x.dtype
    return torch.bfloat16 if not x.is_cpu or cpu_multiplies_bfloat16() else torch.float32


@functools.cache
def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16: AMX or AVX-512 BF16."""
    names = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)

"""What a probe reads at a step: chosen coordinates, their histograms, and the estimate that the
step follows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from sgdf import SGDF, FilterAdam, Momentum
from sgdf.filter import FLOAT32, FLOAT64, Corrections, Moments, direction, wiener_gain
from sgdf.optim import compute_dtype, filter_settings, read_moment
from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.support.numerics import joint_norm

# A fixed, seeded choice of coordinates, and histograms of what is read there.

LEAST = 16  # coordinates of every tensor that has as many
BINS = 1024
KERNEL = 0.1  # standard deviation of a kernel, relative to the value
REACH = math.asinh(1e6)  # the bins range over a million times the scale, in both directions


# --- coordinates ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pick:
    """The coordinates of one parameter that are read, as indices into its elements."""

    name: str
    size: int
    index: Tensor
    repeats: Tensor  # the number of coordinates, on the parameter's device

    @property
    def count(self) -> int:
        return len(self.index)

    def of(self, tensor: Tensor) -> Tensor:
        """These coordinates of a tensor in any memory layout."""
        return real(tensor).take(self.index)


def real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def gather(picks: Sequence[Pick], tensors: Sequence[Tensor]) -> Tensor:
    """The chosen coordinates of one tensor per pick, in float64."""
    values = [pick.of(t) for pick, t in zip(picks, tensors, strict=True)]
    if values[0].is_cuda:
        return torch.cat(values).double()
    # NumPy uses no threads, which would cost more than they gain at these sizes.
    return torch.from_numpy(np.concatenate([value.double().numpy() for value in values]))


def choose(
    parameters: Sequence[tuple[str, Tensor]], coordinates: int, seed: int
) -> dict[Tensor, Pick]:
    """About `coordinates` in all, in proportion to the sizes, but at least LEAST per tensor."""
    if coordinates < 1:
        raise ValueError(f"coordinates must be a number from 1 on, not {coordinates}")
    devices = {str(p.device) for _, p in parameters}
    if len(devices) > 1:
        raise ValueError(f"the parameters are on several devices: {', '.join(sorted(devices))}")
    sizes = [p.numel() * (2 if p.is_complex() else 1) for _, p in parameters]
    picks = {}
    for i, ((name, p), size) in enumerate(zip(parameters, sizes, strict=True)):
        if hasattr(p, "placements"):
            raise ValueError(f"{name} is sharded: only unsharded parameters can be sampled")
        count = min(size, max(LEAST, round(coordinates * size / sum(sizes))))
        if count:
            chosen = np.random.default_rng([seed, i]).choice(size, count, replace=False)
            index = torch.from_numpy(np.sort(chosen)).to(p.device)
            picks[p] = Pick(name, size, index, torch.tensor(count, device=p.device))
    return picks


# --- histograms -----------------------------------------------------------------------------------


@dataclass
class Histogram:
    """Counts in bins of equal width below `scale`, and of equal width in the logarithm above.

    The bin edges are scale * sinh(u) for evenly spaced u. Exact zeros, as from inactive units, are
    counted separately, and so is what lies outside all bins.
    """

    scale: float
    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    zeros: int = 0
    below: int = 0
    above: int = 0
    not_finite: int = 0
    sum: float = 0.0
    sum_of_squares: float = 0.0

    @classmethod
    def for_values_like(cls, values: Array) -> "Histogram":
        """An empty histogram whose scale fits these values."""
        sizes = np.abs(values[np.isfinite(values) & (values != 0)])
        return cls(float(np.median(sizes)) if len(sizes) else 1.0)

    @property
    def edges(self) -> Array:
        return self.scale * np.sinh(np.linspace(-REACH, REACH, BINS + 1))

    @property
    def total(self) -> int:
        """The number of finite values."""
        return sum(self.counts) + self.zeros + self.below + self.above

    @property
    def mean(self) -> float:
        return self.sum / self.total if self.total else 0.0

    @property
    def std(self) -> float:
        mean_square = self.sum_of_squares / self.total if self.total else 0.0
        return math.sqrt(max(0.0, mean_square - self.mean**2))

    def add(self, values: Array) -> None:
        finite = values[np.isfinite(values)]
        self.sum += float(finite.sum())
        self.sum_of_squares += float((finite**2).sum())
        rest = finite[finite != 0]
        bins = np.floor((np.arcsinh(rest / self.scale) / REACH + 1) * (BINS / 2)).astype(np.int64)
        counts = np.bincount(np.clip(bins, -1, BINS) + 1, minlength=BINS + 2)
        self.counts = (np.asarray(self.counts) + counts[1:-1]).tolist()
        self.below += int(counts[0])
        self.above += int(counts[-1])
        self.zeros += len(finite) - len(rest)
        self.not_finite += len(values) - len(finite)

    def cumulative(self, at: Array) -> Array:
        """The number of values below each place, taking them as evenly spread inside a bin."""
        sums = self.below + np.concatenate([[0], np.cumsum(self.counts)])
        return np.asarray(np.interp(at, self.edges, sums) + self.zeros * (at > 0))

    def density(self, at: Array) -> Array:
        """A kernel density of the values other than zero.

        With x = scale * sinh(u) the kernels have equal width in u: narrow in x for small values,
        a tenth of the value in the tails.
        """
        centres = np.linspace(-REACH, REACH, 2 * BINS + 1)[1::2]
        distances = (np.arcsinh(at / self.scale)[:, None] - centres) / KERNEL
        kernels = np.exp(-(distances**2) / 2) / (KERNEL * math.sqrt(2 * math.pi))
        heights = kernels @ np.asarray(self.counts, dtype=np.float64) / max(self.total, 1)
        return np.asarray(heights / np.hypot(at, self.scale))


# The estimate of the gradient that an optimizer's step follows, at chosen coordinates.

#: What counts as the estimated gradient of an optimizer.
ESTIMATES = {
    "filter": "the estimate of sgdf.filter, from gradient and state",
    "momentum": "the momentum buffer after the step (with Nesterov, what the step followed)",
    "direction": "what the step moved the parameters by, over the learning rate",
}


def estimate_of(optimizer: Optimizer) -> str:
    """Which of ESTIMATES applies."""
    if isinstance(optimizer, SGDF | FilterAdam):
        return "filter"
    return "momentum" if isinstance(optimizer, Momentum | SGD) else "direction"


@dataclass
class GroupSnapshot:
    """One parameter group just before a step, at the chosen coordinates."""

    group: dict[str, Any]
    parameters: list[Tensor]
    picks: list[Pick]
    raw: Tensor
    norm: Tensor  # of the group's full gradient
    before: Tensor | None = None  # the parameters, if the estimate depends on them
    moments: tuple[Tensor, Tensor, Tensor] | None = None  # steps, m and s of the filter

    def spread(self, numbers: Tensor) -> Tensor:
        """Repeat a number per parameter for each of its coordinates."""
        counts = torch.stack([pick.repeats for pick in self.picks])
        on_device = numbers.to(self.raw.device, non_blocking=True)
        return on_device.repeat_interleave(counts, output_size=len(self.raw))

    @property
    def gradient(self) -> Tensor:
        """As the optimizer uses it: negated to maximize, with the L2 penalty if there is one."""
        g = -self.raw if self.group.get("maximize") else self.raw
        return g if self.before is None else g + self.group["weight_decay"] * self.before


def snapshot(
    optimizer: Optimizer,
    estimate: str,
    group: dict[str, Any],
    parameters: list[Tensor],
    picks: list[Pick],
) -> GroupSnapshot:
    """Read gradients, and the parameters and state that the estimate depends on."""
    if any(p.grad is not None and p.grad.is_sparse for p in parameters):
        raise RuntimeError("a Probe does not support sparse gradients")
    grads: list[Any] = [p.grad for p in parameters]
    raw = gather(picks, grads)
    norm = joint_norm(grads)
    scale = getattr(optimizer, "grad_scale", None)  # set by torch's GradScaler
    if scale is not None:
        raw, norm = raw / scale, norm / scale.squeeze()
    seen = GroupSnapshot(group, parameters, picks, raw, norm)
    if depends_on_parameters(estimate, group):
        seen.before = gather(picks, parameters)
    if estimate == "filter":
        seen.moments = filter_state(optimizer, seen)
    return seen


def estimated(optimizer: Optimizer, estimate: str, seen: GroupSnapshot) -> tuple[Tensor, Any]:
    """The estimated gradient after the step, and the gain if there is a filter, else None."""
    gain = None
    if estimate == "filter":
        value, gain = filtered(seen)
    elif estimate == "momentum":
        value = momentum(optimizer, seen)
    else:
        assert seen.before is not None
        value = (seen.before - gather(seen.picks, seen.parameters)) / seen.group["lr"]
    return (-value if seen.group.get("maximize") else value), gain


def depends_on_parameters(estimate: str, group: dict[str, Any]) -> bool:
    """Whether parameters enter the estimate: by their movement, or by an L2 penalty."""
    if estimate == "direction":
        return True
    return bool(group.get("weight_decay")) and not group.get("decoupled_weight_decay")


def filter_state(optimizer: Optimizer, seen: GroupSnapshot) -> tuple[Tensor, Tensor, Tensor]:
    """Steps, m and s before a step. After it, low-precision state would be rounded."""
    states = [optimizer.state.get(p, {}) for p in seen.parameters]
    steps = [state.get("step", torch.zeros(())).double() for state in states]
    if any(step.is_cuda for step in steps):  # so that the host need not wait for these
        steps = [step.to(seen.raw.device, non_blocking=True) for step in steps]
    m, s = (
        gather(seen.picks, moments_or_zeros(seen.parameters, states, key))
        for key in ("exp_avg", "exp_var")
    )
    return torch.stack(steps), m, s


def moments_or_zeros(
    parameters: Sequence[Tensor], states: Sequence[dict[str, Any]], key: str
) -> list[Tensor]:
    pairs = zip(parameters, states, strict=True)
    return [
        read_moment(state, key) if key in state else p.new_zeros(()).expand_as(p)
        for p, state in pairs
    ]


def filtered(seen: GroupSnapshot) -> tuple[Tensor, Tensor]:
    """g^ and K by sgdf.filter, in float64; K is 1 where the gain is constant."""
    assert seen.moments is not None
    settings, g = filter_settings(seen.group), seen.gradient
    numbers = FLOAT64 if compute_dtype(seen.parameters[0]) == torch.float64 else FLOAT32
    steps, m, s = seen.moments
    by_parameter = settings.corrections(steps + 1, torch)
    corrections = Corrections(*(seen.spread(torch.zeros_like(steps) + x) for x in by_parameter))
    values: list[Any] = [g, m, s, *corrections]
    if not g.is_cuda:  # as in `gather`
        values = [value.numpy() for value in values]
    g, m, s, *scalars = values
    corrections = Corrections(*scalars)
    with np.errstate(all="ignore"):  # gradients may be infinite or NaN
        g_hat, moments = direction(
            *(g, Moments(m, s), 1, settings),
            corrections=corrections,
            numbers=numbers,
            xp=torch if torch.is_tensor(g) else np,
        )
        residual = g - moments.m / corrections.trend
        eps = max(settings.eps, numbers.smallest)
        gain = wiener_gain(moments.s * corrections.fluctuation, residual, eps)
    if settings.constant_gain:
        gain = gain * 0 + 1
    return torch.as_tensor(g_hat), torch.as_tensor(gain)


def momentum(optimizer: Optimizer, seen: GroupSnapshot) -> Tensor:
    if "momentum" in seen.group and not seen.group["momentum"]:
        return seen.gradient  # torch's SGD then keeps no buffer
    buffers = [read_moment(optimizer.state[p], "momentum_buffer") for p in seen.parameters]
    buffer = gather(seen.picks, buffers)
    if seen.group.get("nesterov"):
        buffer = seen.gradient + buffer * float(seen.group["momentum"])
    return buffer

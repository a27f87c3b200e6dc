"""A fixed, seeded choice of coordinates, and histograms of what is read there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.instruments.evaluation import Array

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

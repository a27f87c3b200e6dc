"""Estimates of a gradient as directions of a step: their errors, where they point, the best gain.

All functions take rows of replicas: `replicas` x coordinates, each row from its own batches at the
same weights. The truth is known with noise, as two means over different batches, `first` and
`second`. A product of one deviation from each has no bias from that noise, so squared errors are
right with any number of batches.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sgdf.filter import FLOAT32, FLOAT64, Denominator, Filter, FilterSettings, Moments
from sgdf_lab.instruments.estimators import ErrorParts, WithError, bias_variance_mse, jackknife
from sgdf_lab.models.language import GPT

PAPER_EPS = 1e-8  # beside squared gradients: what FilterAdam uses if it is given no gain_eps


# --- the estimates --------------------------------------------------------------------------------


def rules(beta1: float) -> dict[str, dict[str, float]]:
    """By name, the settings of `filter.estimate`. A constant gain of 1 is the gradient itself."""
    return {
        "average": {"gain_scale": 0.0, "gain_power": 0.0, "eps": 0.0},
        "K": {"gain_scale": 1.0, "gain_power": 1.0, "eps": 0.0},
        "2K": {"gain_scale": 2.0, "gain_power": 1.0, "eps": 0.0},
        "K-eps": {"gain_scale": 1.0, "gain_power": 1.0, "eps": PAPER_EPS},
        "nesterov": {"gain_scale": 1 - beta1, "gain_power": 0.0, "eps": 0.0},
        "half": {"gain_scale": (1 - beta1) / 2, "gain_power": 0.0, "eps": 0.0},
        "gradient": {"gain_scale": 1.0, "gain_power": 0.0, "eps": 0.0},
    }


class DirectionFilter(Filter):
    """The filter and Adam's v over one stream of gradients, or over rows of them."""

    def __init__(self, betas: tuple[float, float], dtype: torch.dtype) -> None:
        settings = FilterSettings(betas, eps=0.0, gain_scale=1.0)
        numbers = FLOAT64 if dtype == torch.float64 else FLOAT32
        super().__init__(settings, Denominator(), numbers=numbers, xp=torch)

    def repeated(self, replicas: int) -> "DirectionFilter":
        """Rows that start from these moments; only the rows see later gradients."""
        rows = copy.copy(self)
        rows.moments = Moments(
            *(x.expand(replicas, -1).clone() if torch.is_tensor(x) else x for x in self.moments)
        )
        return rows

    @property
    def second(self) -> Tensor:
        """v^, the bias-corrected average of g^2."""
        return self.moments.v * self._unscaled

    def estimates(self) -> dict[str, Tensor]:
        """The estimates of the last gradient's mean, by the name of their rule."""
        return {name: self.estimate(**rule) for name, rule in rules(self.settings.betas[0]).items()}

    def spread(self) -> Tensor:
        """The standard deviation of the gradient about its trend, as s knows it."""
        return (self.moments.s * self._unscaled).sqrt()

    @property
    def _unscaled(self) -> float:
        """1 / (1 - b2^t)."""
        settings = self.settings._replace(correction=False)
        return float(settings.corrections(self.t).fluctuation)


# --- errors and angles ----------------------------------------------------------------------------


def errors_about(rows: Tensor, first: Tensor, second: Tensor) -> ErrorParts:
    """Squared bias, variance and mean squared error per coordinate, with standard errors."""
    one, other = rows.double() - first.double(), rows.double() - second.double()
    products = (one @ other.T / rows.shape[1]).cpu().numpy()
    products = (products + products.T) / 2

    def part(which: int) -> Callable[[Any], float]:
        return lambda kept: bias_variance_mse(products[np.ix_(kept, kept)])[which]

    parts = [jackknife(part(which), len(products)) for which in range(3)]
    return ErrorParts(parts[0], parts[1], parts[2], products.diagonal().tolist())


def ratio_of(squares: Sequence[float], others: Sequence[float]) -> WithError:
    """The ratio of two sums over the same replicas."""
    ours, theirs = np.asarray(squares), np.asarray(others)
    return jackknife(lambda kept: float(ours[kept].sum() / theirs[kept].sum()), len(ours))


def mean_of(values: Sequence[float]) -> WithError:
    """The mean over replicas and its standard error."""
    numbers = np.asarray(values)
    return jackknife(lambda kept: float(numbers[kept].mean()), len(numbers))


def squared_length(first: Tensor, second: Tensor) -> float:
    """|truth|^2 without the bias from its noise; it may come out negative where that is large."""
    return float(first.double() @ second.double())


def cosines(rows: Tensor, first: Tensor, second: Tensor) -> list[float]:
    """The cosine of each row and the truth; NaN where the truth is lost in its noise.

    The decrease of the loss by a short step of a given length is the cosine times that length
    times the length of the true gradient.
    """
    length = math.sqrt(max(squared_length(first, second), 0.0))
    truth = (first.double() + second.double()) / 2
    inner = [float(row.double() @ truth) for row in rows]
    lengths = [float(row.double().norm()) * length for row in rows]
    return [i / n if n > 0 else math.nan for i, n in zip(inner, lengths, strict=True)]


def sign_cosines(rows: Tensor, truth: Tensor) -> list[float]:
    """The cosine of each row and the signs of the truth."""
    return cosines(rows, truth.sign(), truth.sign())


def sizes(rows: Tensor) -> list[float]:
    """The root mean square of each row."""
    return [float(row.double().norm()) / math.sqrt(len(row)) for row in rows]


# --- the best gain --------------------------------------------------------------------------------


@dataclass(frozen=True)
class GainBin:
    """Coordinates whose size lies between `low` and `high`.

    `best` is the constant gain that minimises the squared error of m^ + gain (g - m^) over them.
    `gain` is what K is there, the mean with the weight of the squared residual: a rule whose gain
    is constant and equal to it adds as much.
    """

    low: float
    high: float | None  # None: no end
    share: float  # of the coordinates
    energy: float  # their share of the squared residual
    gain: float
    best: WithError


def best_gains(
    size: Tensor,
    edges: Sequence[float],
    residual: Tensor,
    wanted: Tensor,
    gain: Tensor,
    weights: Tensor | None = None,
) -> list[GainBin]:
    """K and the best gain by bins of `size`; all arguments are rows of replicas.

    Args:
        size: what the bins are made of.
        edges: of the bins; the last one ends at infinity.
        residual: g - m^.
        wanted: truth - m^; its noise has to be independent of residual and size.
        gain: K.
        weights: of the squared error; 1 / denominator^2 measures it in Adam's steps.
    """
    square = residual.double().square()
    product = residual.double() * wanted.double()
    if weights is not None:
        square, product = square * weights.double(), product * weights.double()
    of_gain, total = square * gain.double(), float(square.sum())
    bins = []
    for low, high in zip(edges, [*edges[1:], None], strict=True):
        inside = (size >= low) & (size < (math.inf if high is None else high))
        below = sums_of(square, inside)
        if not all(below):
            continue  # a replica has no coordinate there
        bins.append(
            GainBin(
                low,
                high,
                float(inside.double().mean()),
                sum(below) / total,
                sum(sums_of(of_gain, inside)) / sum(below),
                ratio_of(sums_of(product, inside), below),
            )
        )
    return bins


def sums_of(values: Tensor, inside: Tensor) -> list[float]:
    sums: list[float] = torch.where(inside, values, 0.0).sum(1).tolist()
    return sums


# --- steps of equal size --------------------------------------------------------------------------


def decreases(
    loss_at: Callable[[Tensor], float], weights: Tensor, rows: Tensor, size: float
) -> list[float]:
    """By how much a step against each row lowers the loss; all steps have the same RMS, `size`."""
    start = loss_at(weights)
    return [start - loss_at(stepped) for stepped in steps_against(weights, rows, size)]


def steps_against(weights: Tensor, rows: Tensor, size: float) -> Iterator[Tensor]:
    for row, now in zip(rows, sizes(rows), strict=True):
        yield weights - (size / now) * row


@dataclass(frozen=True)
class TriedSteps:
    """Decreases of the loss by steps of one size and of a `part` of it, a number per replica.

    Along a direction the decrease of a step x times as long as the full one is taken as
    slope x - cost x^2: what the first order promises less what the curvature takes.
    """

    part: float
    short: list[float]
    full: list[float]

    def fitted(self, kept: Any = slice(None)) -> tuple[float, float]:
        """slope and cost, from the means over some replicas."""
        short = float(np.asarray(self.short)[kept].mean())
        full = float(np.asarray(self.full)[kept].mean())
        slope = (short / self.part**2 - full) / (1 / self.part - 1)
        return slope, slope - full

    def summary(self, kept: Any = slice(None)) -> dict[str, float]:
        """With `most`, the decrease at the best length along the direction, `length`.

        Where there is no cost, no length is the best one.
        """
        slope, cost = self.fitted(kept)
        length = slope / (2 * cost) if cost > 0 else math.nan
        return {"slope": slope, "cost": cost, "length": length, "most": slope * length / 2}

    def over(self, others: "TriedSteps") -> dict[str, WithError]:
        """slope, cost, length and most over those of other directions from the same replicas."""

        def ratio(name: str) -> Callable[[Any], float]:
            return lambda kept: divided(self.summary(kept)[name], others.summary(kept)[name])

        return {name: jackknife(ratio(name), len(self.short)) for name in self.summary()}


def divided(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else math.nan


# The layers of a GPT as places in the vector of all its parameters, and the gains found there.

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SAMPLED = 2000  # coordinates of each part

#: By the end of a parameter's name. The rows of qkv are those of queries, keys and values.
KINDS = {
    "attention.qkv.weight": ("query", "key", "value"),
    "attention.out.weight": ("attention out",),
    "mlp.into.weight": ("MLP in",),
    "mlp.out.weight": ("MLP out",),
    "norm.weight": ("norms",),
    "embedding.weight": ("embedding and head",),  # one matrix, in this model
}


class Part(NamedTuple):
    """Coordinates `start` to `stop` of the vector; `depth` counts the blocks from 1."""

    kind: str
    depth: int | None  # None outside the blocks
    start: int
    stop: int


@dataclass(frozen=True)
class GainsOfPart:
    kind: str
    depth: int | None
    quantiles: list[float]  # of K, at QUANTILES
    mean: float


def parts_of(model: GPT) -> list[Part]:
    """The parts of the vector, in its order."""
    parts, start = [], 0
    for name, parameter in model.named_parameters():
        block = re.match(r"blocks\.(\d+)\.", name)
        depth = int(block[1]) + 1 if block else None
        kinds = next(kinds for ending, kinds in KINDS.items() if name.endswith(ending))
        length = parameter.numel() // len(kinds)
        for kind in kinds:
            parts.append(Part(kind, depth, start, start + length))
            start += length
    return parts


def gains_by_part(gain: Tensor, parts: Sequence[Part], seed: int) -> list[GainsOfPart]:
    """Quantiles of K over rows of replicas, at a seeded choice of coordinates of each part."""
    found = []
    for i, part in enumerate(parts):
        size = part.stop - part.start
        random = np.random.default_rng([seed, i])
        chosen = np.sort(random.choice(size, min(size, SAMPLED), replace=False)) + part.start
        values = gain[:, torch.from_numpy(chosen).to(gain.device)].double().flatten()
        at = torch.tensor(QUANTILES, dtype=torch.float64, device=gain.device)
        quantiles = values.quantile(at).tolist()
        found.append(GainsOfPart(part.kind, part.depth, quantiles, values.mean().item()))
    return found

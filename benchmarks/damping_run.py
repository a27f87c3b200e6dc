"""Runs of a small GPT with a constant gain, and what is measured along them: see damping.py.

Gradients, moments and weights are vectors of all parameters. The step is AdamW's, with the estimate
m^ + c (g - m^) instead of m^.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sgdf import FilterMuon, param_groups
from sgdf_lab.instruments.hessian import Multiply, twice_differentiable
from sgdf_lab.models.language import build_gpt
from sgdf_lab.registry.models import GPTS
from sgdf_lab.training.batches import seed_for
from sgdf_lab.training.schedules import Shape, factors
from sgdf_lab.training.tokens import EvaluationWindows, resident, windows
from why_directions import DirectionFilter

BETAS, EPS, CLIP, DECAY, WARMUP = (0.9, 0.95), 1e-8, 1.0, 0.1, 0.05
CPU = torch.device("cpu")


class Setting(NamedTuple):
    """What is trained, of how many steps, and how much is held out."""

    model: str
    batch: int  # windows of the model's context
    steps: int
    held_out: int  # windows


class Text(NamedTuple):
    train: np.ndarray
    held_out: np.ndarray


class Network:
    """A GPT whose parameters are one vector, with its gradients and losses."""

    def __init__(self, setting: Setting, text: Text, seed: int) -> None:
        self.setting, self.text, self.seed = setting, text, seed
        self.context = GPTS[setting.model].context
        torch.manual_seed(seed_for("weights", seed))
        self.model = build_gpt(setting.model, vocabulary=256)
        self.parameters = list(self.model.parameters())
        self.weights = torch.cat([p.detach().flatten() for p in self.parameters])
        for p, part in zip(self.parameters, self.parts(self.weights), strict=True):
            p.data = part.view_as(p)  # what changes the vector changes the network
        self.tokens = resident(text.train, CPU)
        most = setting.held_out * self.context
        self.held_out = EvaluationWindows(text.held_out, CPU, context=self.context, most=most)
        shape = Shape(warmup=WARMUP)
        self.rates = factors("cosine", shape, first=0, count=setting.steps, steps=setting.steps)

    def parts(self, vector: Tensor) -> tuple[Tensor, ...]:
        return vector.split([p.numel() for p in self.parameters])

    def layers(self) -> list[str]:
        return [name.removesuffix(".weight") for name, _ in self.model.named_parameters()]

    def windows(self, stream: str, step: int, count: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng(seed_for(stream, self.seed, step))
        starts = random.integers(0, len(self.tokens) - self.context, count)
        return windows(self.tokens, torch.from_numpy(starts), self.context)

    def loss(self, tokens: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(self.model(tokens).flatten(0, 1), following.flatten())

    def gradient(self, stream: str, step: int) -> Tensor:
        loss = self.loss(*self.windows(stream, step, self.setting.batch))
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.parameters)])

    def clipped(self, step: int) -> tuple[Tensor, float]:
        """The gradient as the step gets it, and the factor of its clipping."""
        g = self.gradient("training", step)
        factor = min(1.0, CLIP / max(g.norm().item(), 1e-30))
        return g * factor, factor

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Infinite where it is not a number: a run that broke is a result."""
        batches = self.held_out.batches(0, len(self.held_out))
        loss = sum(self.loss(*batch).item() * len(batch[0]) for batch in batches)
        return loss / len(self.held_out) if math.isfinite(loss) else math.inf


# --- the run --------------------------------------------------------------------------------------


class Run(Network):
    """The AdamW-like step, from the start or from wherever `moved_to` brought it."""

    def __init__(self, setting: Setting, text: Text, seed: int, gain: float) -> None:
        super().__init__(setting, text, seed)
        self.gain = gain
        self.filter = DirectionFilter(BETAS, torch.float32)

    def observe(self, step: int) -> float:
        """Take in the gradient of this step; give the factor of its clipping."""
        g, factor = self.clipped(step)
        self.filter(g)
        return factor

    def correction(self) -> Tensor:
        """c (g - m^), what the gain adds to the average."""
        estimate: Tensor = self.filter.estimate(gain_scale=self.gain, gain_power=0.0)
        return estimate - self.filter.m_hat

    def denominator(self) -> Tensor:
        return self.filter.second.sqrt() + EPS

    def move(self, lr: float, correction: Tensor) -> None:
        direction = (self.filter.m_hat + correction) / self.denominator()
        self.weights.mul_(1 - lr * DECAY).sub_(direction, alpha=lr)

    def through(self, lr: float, until: int) -> Iterator[tuple[int, float]]:
        """Train; stop before every step, once its gradient is known."""
        for step in range(1, until + 1):
            factor = self.observe(step)
            yield step, factor
            self.move(lr * self.rates[step - 1], self.correction())

    # --- branches: the same run from one point on, in several ways ---

    def state(self) -> tuple[Tensor, Any]:
        return self.weights.clone(), copy.copy(self.filter)

    def branch(
        self, state: tuple[Tensor, Any], lr: float, gain: float, first: int, span: int,
        kick: Tensor | None = None,
    ) -> Iterator[Tensor]:  # fmt: skip
        """The weights before each of `span` steps at a constant rate, and after the last one."""
        self.gain = gain
        self.weights.copy_(state[0] if kick is None else state[0] + kick)
        self.filter = copy.copy(state[1])
        for step in range(first, first + span):
            yield self.weights
            self.observe(step)
            self.move(lr, self.correction())
        yield self.weights


def muon_loss(setting: Setting, text: Text, seed: int, gain: float, lr: float) -> float:
    """The held-out loss after a run whose matrices take orthogonalised steps."""
    network = Network(setting, text, seed)
    optimizer = FilterMuon(
        param_groups(network.model, weight_decay=DECAY), lr=lr, betas=BETAS, weight_decay=DECAY,
        gain_scale=gain, gain_power=0.0, slow_weight=0.0, aux_betas=BETAS,
        aux_gain_scale=gain, aux_gain_power=0.0, aux_weight_decay=DECAY,
    )  # fmt: skip
    for step in range(1, setting.steps + 1):
        g, _ = network.clipped(step)
        for p, part in zip(network.parameters, network.parts(g), strict=True):
            p.grad = part.view_as(p)
        for group in optimizer.param_groups:
            group["lr"] = lr * network.rates[step - 1]
        optimizer.step()
    return network.held_out_loss()


# --- innovations and errors -----------------------------------------------------------------------


class Innovations:
    """Sums of products of successive innovations, by layer, for their lag-1 correlation."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.last: Tensor | None = None
        self.sums: dict[str, np.ndarray] = {}  # by metric: layers x (product, square, square)

    def add(self, innovation: Tensor, denominator: Tensor) -> None:
        if self.last is not None:
            for metric, scale in (("plain", None), ("adam", denominator)):
                one, other = (e if scale is None else e / scale for e in (innovation, self.last))
                rows = [
                    [float(a @ b), float(a @ a), float(b @ b)]
                    for a, b in zip(self.network.parts(one), self.network.parts(other), strict=True)
                ]
                self.sums[metric] = self.sums.get(metric, 0.0) + np.array(rows)
        self.last = innovation

    def take(self) -> dict[str, list[float]]:
        """The correlation of each layer since the last call, and of all in the last place."""
        found = {}
        for metric, sums in self.sums.items():
            rows = np.vstack([sums, sums.sum(0)])
            found[metric] = (rows[:, 0] / np.sqrt(rows[:, 1] * rows[:, 2])).tolist()
        self.sums = {}
        return found


def error_terms(run: Run, halves: Sequence[Tensor]) -> dict[str, list[float]]:
    """By metric A, B, C of the squared error A + 2 B c + C c^2 of m^ + c (g - m^).

    The noise of the truth is in two halves that are independent: it adds nothing.
    """
    average = run.filter.m_hat
    residual = run.filter.g - average
    found = {}
    for metric, scale in (("plain", torch.ones(())), ("adam", run.denominator())):
        one, other, r = ((x / scale).double() for x in (
            average - halves[0], average - halves[1], residual
        ))  # fmt: skip
        found[metric] = [float(one @ other), float(r @ (one + other) / 2), float(r @ r)]
    return found


# --- steep directions -----------------------------------------------------------------------------


class Steep(NamedTuple):
    """The largest eigenvalues of D^-1/2 H D^-1/2, their vectors as columns, and D^1/2."""

    values: np.ndarray
    vectors: Tensor
    root: Tensor

    def along(self, weights: Tensor) -> Tensor:
        """The coordinates of a displacement of the weights along the directions."""
        return self.vectors.T @ (self.root * weights)

    def part(self, gradient: Tensor) -> Tensor:
        """The part of a gradient along the directions."""
        inside: Tensor = self.vectors @ (self.vectors.T @ (gradient / self.root))
        return self.root * inside


def curvature(run: Run, root: Tensor, stream: str, step: int, count: int) -> Multiply:
    """A function that multiplies D^-1/2 H D^-1/2 with a vector; H is of `count` windows."""
    with twice_differentiable():
        loss = run.loss(*run.windows(stream, step, count))
        grads = torch.autograd.grad(loss, run.parameters, create_graph=True)
    gradient = torch.cat([g.flatten() for g in grads])

    def multiply(vector: Tensor) -> Tensor:
        products = torch.autograd.grad(gradient, run.parameters, vector / root, retain_graph=True)
        return torch.cat([part.flatten() for part in products]) / root

    return multiply


def steepest(
    run: Run, step: int, count: int, k: int, tolerance: float, start: Tensor | None = None
) -> Steep:
    """The k steepest directions at the weights of the run, by Lanczos.

    `largest_eigenvalues` of the instruments resolves them to 1e-5 and looks for multiple ones,
    which takes five times as long: too long for every 20 steps.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    root = run.denominator().sqrt()
    multiply = curvature(run, root, "curvature", step, count)

    def matvec(vector: np.ndarray) -> np.ndarray:
        return multiply(torch.from_numpy(vector.ravel()).float()).double().numpy()

    size = len(root)
    random = np.random.default_rng(seed_for("lanczos", run.seed, step))
    first = random.standard_normal(size) / math.sqrt(size)
    if start is not None:
        first = 0.1 * first + start.sum(1).double().numpy()
    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float64)
    try:
        values, vectors = eigsh(
            operator, k, which="LA", ncv=3 * k, tol=tolerance, maxiter=10, v0=first
        )
    except ArpackNoConvergence as error:  # those that it has
        values, vectors = error.eigenvalues, error.eigenvectors
    order = np.argsort(values)[::-1].copy()
    return Steep(values[order], torch.from_numpy(vectors[:, order].copy()).float(), root)


# --- kicks ----------------------------------------------------------------------------------------


def fitted_factor(response: Sequence[float]) -> float:
    """The factor of the recursion r[t+1] = a r[t] - b r[t-1] that fits best."""
    r = np.asarray(response)
    (a, b), *_ = np.linalg.lstsq(np.column_stack([r[1:-1], -r[:-2]]), r[2:], rcond=None)
    return float(np.abs(np.roots([1.0, -a, b])).max())


def swing(positions: np.ndarray) -> np.ndarray:
    """The variance of each column about a straight line through it."""
    t = np.arange(len(positions))
    design = np.column_stack([np.ones(len(t)), t])
    fit, *_ = np.linalg.lstsq(design, positions, rcond=None)
    return np.asarray(((positions - design @ fit) ** 2).mean(0))

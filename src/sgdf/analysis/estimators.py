"""How far estimates of the gradient are from the true one: the paper's central claim, measured.

Bias, variance and mean squared error of g, EMA, CM and g^ about the gradient over all images, on a
fixed, seeded choice of coordinates, in float64.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from sgdf.analysis.gradients import Array, choose, gather
from sgdf.analysis.probe import (
    Loss,
    batch_norms,
    checked_loss,
    counting,
    read,
    trainable,
)
from sgdf.filter import bias_corrections, wiener_filter
from sgdf.kernels.arithmetic import positive_eps
from sgdf.support.files import write_json
from sgdf.support.numerics import full_precision

FULL_BATCH = 1024  # images at a time

Rule = Callable[[Tensor, int], Tensor]  # the t-th gradient -> the estimate after it


def raw_rule(**_: Any) -> Rule:
    return lambda g, t: g


def momentum_rule(mu: float | None = None) -> Callable[..., Rule]:
    def make(betas: tuple[float, float], **_: Any) -> Rule:
        weight = 1 - betas[0] if mu is None else mu
        m: Tensor | float = 0.0

        def rule(g: Tensor, t: int) -> Tensor:
            nonlocal m
            m = betas[0] * m + weight * g
            return torch.as_tensor(m)

        return rule

    return make


def filter_rule(gain_scale: float, gain_power: float = 1.0) -> Callable[..., Rule]:
    def make(betas: tuple[float, float], eps: float) -> Rule:
        beta1, beta2 = betas
        m: Any = 0.0
        s: Any = 0.0
        gain = {"gain_scale": gain_scale, "gain_power": gain_power}
        least = positive_eps(eps, torch.float64)

        def rule(g: Tensor, t: int) -> Tensor:
            nonlocal m, s
            corrections = bias_corrections(t, beta1, beta2)
            settings = {"beta1": beta1, "beta2": beta2, "eps": least, **gain}
            estimate, m, s = wiener_filter(g, m, s, corrections, **settings)
            return torch.as_tensor(estimate)

        return rule

    return make


#: By name. SGD-EMA is also SGD-CM times 1 - beta, exactly: both are sums with the same weights.
ESTIMATORS: dict[str, Callable[..., Rule]] = {
    "g": raw_rule,
    "sgd-ema": momentum_rule(),
    "sgd-cm": momentum_rule(1.0),
    "ema": filter_rule(0.0),  # bias-corrected
    "sgdf": filter_rule(2.0),
    "sgdf-k": filter_rule(1.0),
    "sgdf-root": filter_rule(1.0, 0.5),
}


@dataclass(frozen=True)
class Value:
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Error:
    """Means over the coordinates; bias2 is free of the bias that few replicas would give it."""

    bias2: Value
    variance: Value
    mse: Value
    squares: list[float]  # the squared error of each replica


@dataclass(frozen=True)
class Measurement:
    """The estimators at one moment of the training.

    `drift` is the q of a gradient that walks at random with steps of q times the noise's standard
    deviation and gets as far between two measurements; None at the first.
    """

    step: int
    loss: float
    signal: float  # the mean square of the true gradient
    noise: float  # the variance of g
    drift: float | None
    errors: dict[str, Error]

    def relative(self, name: str) -> float:
        """The mean squared error as a part of the signal."""
        return self.errors[name].mse.value / self.signal if self.signal else math.inf


@dataclass(frozen=True)
class EstimatorErrors:
    """The errors along one training, and how they were measured."""

    optimizer: str
    images: int
    batch: int
    replicas: int
    coordinates: int
    parameters: int
    betas: tuple[float, float]
    eps: float
    seed: int
    measurements: list[Measurement]

    @property
    def after_the_first(self) -> int:
        """The step from which on there was something to average, if any was measured."""
        return self.measurements[min(1, len(self.measurements) - 1)].step

    def share(self, name: str, part: str, since: int = 0) -> float:
        """The squared bias (bias2), variance or mse from step `since` on, over the signal."""
        found = [m for m in self.measurements if m.step >= since]
        total = sum(getattr(m.errors[name], part).value for m in found)
        return float(total / sum(m.signal for m in found))

    def relative(self, name: str, since: int = 0) -> Value:
        """The mean squared error from step `since` on, as a part of the signal."""
        signal = sum(m.signal for m in self.measurements if m.step >= since)
        squares = self._squares(name, since)
        return left_out(lambda kept: squares[kept].mean() / signal, self.replicas)

    def ratio(self, name: str, to: str = "ema", since: int = 0) -> Value:
        """The mean squared error from step `since` on, over that of another estimator."""
        ours, others = self._squares(name, since), self._squares(to, since)
        return left_out(lambda kept: ours[kept].sum() / others[kept].sum(), self.replicas)

    def _squares(self, name: str, since: int) -> Array:
        found = [m.errors[name].squares for m in self.measurements if m.step >= since]
        if not found:
            raise ValueError(f"nothing was measured from step {since} on")
        return np.asarray(np.sum(found, axis=0))

    def save(self, path: str | Path) -> None:
        write_json(Path(path), asdict(self))


def estimator_errors(
    model: nn.Module,
    loss: Loss,
    data: Iterable[Any],
    *,
    optimizer_factory: Callable[[list[nn.Parameter]], Optimizer],
    steps: int = 100,
    every: int = 10,
    replicas: int = 8,
    batch: int = 32,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    estimators: Sequence[str] = tuple(ESTIMATORS),
    coordinates: int = 8192,
    seed: int = 0,
    progress: bool = True,
) -> EstimatorErrors:
    """Bias, variance and mean squared error of gradient estimators along a training.

    A copy of the model is trained by the optimizer on batches in shuffled epochs. At each of its
    points, `replicas` independent batches (drawn with replacement, so that they are independent of
    each other in time as well) give as many gradients, each of which feeds estimators of its own.
    The truth g* is the gradient of the mean loss over all images at that point. With e_r the
    estimate of a replica, the mean of (e_r - g*)^2 is the mean squared error, the mean of
    (e_r - g*)(e_q - g*) over pairs of different replicas is the squared bias, and the difference is
    the variance; each is averaged over the coordinates and has a standard error by leaving out one
    replica after another (the coordinates, being correlated, do not count as repetitions).

    The model is used in the mode that it is in. Batch norm has to be in eval mode, since in train
    mode no gradient over all images is the mean of those of batches. Dropout may be on: then g*
    has masks as well, a new one for every image, and a noise of its own that is small against that
    of the batches (as batch to images). Weight decay of the optimizer moves the weights, but is not
    part of the gradients here.

    Args:
        model: left as it is.
        loss: called as ``loss(outputs, targets)``, gives the average over a batch's images.
        data: gives batches ``(inputs, targets)`` of tensors, of one shape but for the number.
        optimizer_factory: makes the optimizer from a list of parameters.
        steps: of the training. It is measured at the first and at every `every`-th.
        replicas: at least 3, to know the standard errors.
        batch: images a step.
        betas, eps: of the estimators; momentum uses the first beta.
        estimators: names in `ESTIMATORS`.
        coordinates: about how many are looked at; a few of every parameter.
        seed: of everything random.
        progress: show a bar.
    """
    trained = trainable(model)
    device = next(iter(trained.values())).device
    check_errors(model, steps, every, replicas, estimators)
    x, y = joined(read(data, device))
    if not 1 <= batch <= len(x):
        raise ValueError(f"batch is from 1 to {len(x)}, the images, not {batch}")
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        full_precision(device),
        counting("steps", progress) as counter,
    ):
        torch.manual_seed(seed)
        counter.begin("errors", steps)
        bench = Bench(copy.deepcopy(model), loss, x, y, coordinates, seed)
        optimizer = optimizer_factory(bench.parameters)
        rules = {name: ESTIMATORS[name](betas=betas, eps=eps) for name in estimators}
        order = epochs(len(x), batch, generator(seed, 0))
        streams = [generator(seed, 1 + r) for r in range(replicas)]
        measurements: list[Measurement] = []
        for step in range(1, steps + 1):
            g = torch.stack([bench.gradient(draw(len(x), batch, stream)) for stream in streams])
            estimates = {name: rule(g, step) for name, rule in rules.items()}
            if step == 1 or step % every == 0:
                measurements.append(bench.measure(step, g, estimates))
            bench.train(optimizer, next(order), step)
            counter.tick()
    size = sum(p.numel() for p in bench.parameters)
    return EstimatorErrors(
        *(type(optimizer).__name__, len(x), batch, replicas, len(bench.weights), size),
        *(betas, eps, seed, measurements),
    )


def check_errors(
    model: nn.Module, steps: int, every: int, replicas: int, estimators: Sequence[str]
) -> None:
    if steps < 1 or every < 1:
        raise ValueError(f"steps and every are from 1 on, not {steps} and {every}")
    if replicas < 3:
        raise ValueError(f"replicas is at least 3, to know the standard errors, not {replicas}")
    for name in estimators:
        if name not in ESTIMATORS:
            raise ValueError(f"there is no estimator {name!r}; there are {', '.join(ESTIMATORS)}")
    for name, norm in batch_norms(model).items():
        if norm.training:
            raise ValueError(
                f"{name or 'the model'} is batch norm in train mode, where no gradient is the true "
                "one: put it into eval mode, or take a model without it"
            )


def joined(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    try:
        xs, ys = zip(*batches, strict=True)
        return torch.cat(xs), torch.cat(ys)
    except RuntimeError as error:
        raise ValueError(f"the batches of data do not go together: {error}") from None


def generator(seed: int, stream: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def draw(images: int, batch: int, stream: torch.Generator) -> Tensor:
    return torch.randint(images, (batch,), generator=stream)


def epochs(images: int, batch: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Batches of indices, epoch after epoch."""
    while True:
        order = torch.randperm(images, generator=stream)
        yield from order.split(batch)  # type: ignore[no-untyped-call]


class Bench:
    """A model in training, and its gradients over some or all images at the chosen coordinates."""

    def __init__(
        self, model: nn.Module, loss: Loss, x: Tensor, y: Tensor, coordinates: int, seed: int
    ) -> None:
        self.model, self.loss, self.x, self.y = model, loss, x, y
        named = trainable(model)
        self.parameters = list(named.values())
        self.picks = list(choose(list(named.items()), coordinates, seed).values())
        counts = torch.tensor([pick.count for pick in self.picks])
        sizes = torch.tensor([pick.size for pick in self.picks], dtype=torch.float64)
        # Every chosen coordinate stands for as many as there are for each one chosen.
        self.weights = (sizes / counts / sizes.sum()).repeat_interleave(counts).to(x.device)
        self.truth: tuple[int, Tensor] | None = None  # the last one, and its step

    def loss_of(self, index: Tensor) -> Tensor:
        index = index.to(self.x.device)
        return self.loss(self.model(self.x[index]), self.y[index])

    def gradient(self, index: Tensor) -> Tensor:
        return self._gradient(self.loss_of(index))

    def _gradient(self, loss: Tensor) -> Tensor:
        grads = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        used = [g for g in grads if g.numel()]
        return gather(self.picks, used)

    def true_gradient(self) -> tuple[float, Tensor]:
        """The mean loss over all images and its gradient."""
        total, gradient = 0.0, torch.zeros_like(self.weights)
        for start in range(0, len(self.x), FULL_BATCH):
            index = torch.arange(start, min(start + FULL_BATCH, len(self.x)))
            part = len(index) / len(self.x)
            loss = self.loss_of(index)
            gradient += part * self._gradient(loss)
            total += part * loss.item()
        return total, gradient

    def train(self, optimizer: Optimizer, index: Tensor, step: int) -> None:
        optimizer.zero_grad()
        loss = self.loss_of(index)
        if not loss.isfinite():
            raise ValueError(
                f"the loss of the training is {loss.item()} at step {step}: lower the learning rate"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def measure(self, step: int, g: Tensor, estimates: dict[str, Tensor]) -> Measurement:
        loss, truth = self.true_gradient()
        if not math.isfinite(loss):
            raise ValueError(f"the mean loss over all images is {loss} at step {step}")
        if self.truth is None:  # the first time
            checked_loss(self.model, self.loss, [(self.x[:FULL_BATCH], self.y[:FULL_BATCH])])
        errors = {name: decompose(e - truth, self.weights) for name, e in estimates.items()}
        noise = decompose(g - truth, self.weights).variance.value
        drift = None
        if self.truth is not None:
            since, before = self.truth
            moved = (self.weights * (truth - before) ** 2).sum().item() / (step - since)
            drift = math.sqrt(moved / noise) if noise > 0 else None
        self.truth = step, truth
        signal = (self.weights * truth**2).sum().item()
        return Measurement(step, loss, signal, noise, drift, errors)


def decompose(deviations: Tensor, weights: Tensor) -> Error:
    """Squared bias, variance and mean squared error from deviations (a row a replica).

    All three are in the products of the replicas' deviations with each other.
    """
    products = ((deviations * weights) @ deviations.T).cpu().numpy()

    def part(kept: NDArray[np.int64], which: int) -> float:
        return bias_variance_mse(products[np.ix_(kept, kept)])[which]

    bias2, variance, mse = (
        left_out(functools.partial(part, which=i), len(products)) for i in range(3)
    )
    return Error(bias2, variance, mse, products.diagonal().tolist())


def left_out(statistic: Callable[[NDArray[np.int64]], float], count: int) -> Value:
    """A statistic of all replicas, with its error by leaving out one after another."""
    everyone = np.arange(count)
    without = np.array([statistic(np.delete(everyone, r)) for r in everyone])
    error = math.sqrt((count - 1) * without.var())
    return Value(float(statistic(everyone)), error)


def bias_variance_mse(products: Array) -> tuple[float, float, float]:
    count = len(products)
    mse = products.trace() / count
    bias2 = (products.sum() - products.trace()) / (count * (count - 1))
    return bias2, mse - bias2, mse

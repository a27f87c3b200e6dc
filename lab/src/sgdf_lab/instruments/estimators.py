"""How far estimates of the gradient are from the true one: the paper's central claim, measured.

A copy of the model is trained on shuffled batches. At each of its points, `replicas` independent
batches give as many gradients, and each feeds its own estimators: the raw gradient g, EMA, CM and
the filter's g^. They are drawn with replacement, so that successive batches are independent too.
The truth g* is the gradient of the mean loss over all images at that point. `error_statistics`
defines bias, variance and mean squared error about it. All of it is computed at a fixed, seeded
choice of coordinates, in float64.

With dropout, g* has masks too, a new one for every image, and so a noise that is small against that
of the batches (as batch to images). Weight decay moves the weights, but is not part of the
gradients.
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

from sgdf.filter import Filter, FilterSettings
from sgdf_lab.instruments.evaluation import (
    Array,
    Batches,
    Loss,
    batch_norms,
    checked_loss,
    progress_counter,
    read_batches,
    trainable,
)
from sgdf_lab.instruments.sampling import choose, gather
from sgdf_lab.support.files import write_json
from sgdf_lab.support.numerics import full_precision

# --- statistics ---------------------------------------------------------------------------------
#
# With e_r the estimate of replica r and g* the true gradient: the mean of (e_r - g*)^2 is the mean
# squared error, the mean of (e_r - g*)(e_q - g*) over pairs of different replicas is the squared
# bias, and their difference is the variance. Each is averaged over the coordinates. Standard errors
# are a jackknife over the replicas; coordinates are correlated and do not count as repetitions.


@dataclass(frozen=True)
class WithError:
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class ErrorParts:
    """Means over the coordinates. bias2 is unbiased for any number of replicas."""

    bias2: WithError
    variance: WithError
    mse: WithError
    squares: list[float]  # the squared error of each replica


@dataclass(frozen=True)
class ErrorsAtStep:
    """The errors of all estimators at one step of the run.

    `drift` is q for a random walk whose steps have q times the noise's standard deviation, and
    which gets as far as the gradient did since the last measurement; None at the first one.
    """

    step: int
    loss: float
    signal: float  # the mean square of the true gradient
    noise: float  # the variance of g
    drift: float | None
    errors: dict[str, ErrorParts]


@dataclass(frozen=True)
class EstimatorErrors:
    """The errors along one run, and how they were measured."""

    optimizer: str
    images: int
    batch: int
    replicas: int
    coordinates: int
    parameters: int
    betas: tuple[float, float]
    eps: float
    seed: int
    measurements: list[ErrorsAtStep]

    @property
    def after_the_first(self) -> int:
        """The second measured step, if there is one: at the first there is nothing to average."""
        return self.measurements[min(1, len(self.measurements) - 1)].step

    def share(self, name: str, part: str, since: int = 0) -> float:
        """bias2, variance or mse summed from step `since` on, as a fraction of the signal."""
        later = [m for m in self.measurements if m.step >= since]
        total = sum(getattr(m.errors[name], part).value for m in later)
        return float(total / sum(m.signal for m in later))

    def relative(self, name: str, since: int = 0) -> WithError:
        """The mean squared error from step `since` on, as a fraction of the signal."""
        signal = sum(m.signal for m in self.measurements if m.step >= since)
        squares = self._squares(name, since)
        return jackknife(lambda kept: squares[kept].mean() / signal, self.replicas)

    def ratio(self, name: str, to: str = "ema", since: int = 0) -> WithError:
        """The mean squared error from step `since` on, over that of another estimator."""
        ours, others = self._squares(name, since), self._squares(to, since)
        return jackknife(lambda kept: ours[kept].sum() / others[kept].sum(), self.replicas)

    def _squares(self, name: str, since: int) -> Array:
        squares = [m.errors[name].squares for m in self.measurements if m.step >= since]
        if not squares:
            raise ValueError(f"nothing was measured from step {since} on")
        return np.asarray(np.sum(squares, axis=0))

    def save(self, path: str | Path) -> None:
        write_json(Path(path), asdict(self))


def decompose(deviations: Tensor, weights: Tensor) -> ErrorParts:
    """Squared bias, variance and mean squared error of deviations (one row per replica).

    All three follow from the products of the replicas' deviations with each other.
    """
    products = ((deviations * weights) @ deviations.T).cpu().numpy()

    def part(kept: NDArray[np.int64], which: int) -> float:
        return bias_variance_mse(products[np.ix_(kept, kept)])[which]

    bias2, variance, mse = (
        jackknife(functools.partial(part, which=i), len(products)) for i in range(3)
    )
    return ErrorParts(bias2, variance, mse, products.diagonal().tolist())


def bias_variance_mse(products: Array) -> tuple[float, float, float]:
    count = len(products)
    mse = products.trace() / count
    bias2 = (products.sum() - products.trace()) / (count * (count - 1))
    return bias2, mse - bias2, mse


def jackknife(statistic: Callable[[NDArray[np.int64]], float], count: int) -> WithError:
    """A statistic of all replicas; its standard error by leaving out one at a time."""
    everyone = np.arange(count)
    without_one = np.array([statistic(np.delete(everyone, r)) for r in everyone])
    error = math.sqrt((count - 1) * without_one.var())
    return WithError(float(statistic(everyone)), error)


FULL_BATCH = 1024  # images per batch of a full gradient

Rule = Callable[[Tensor], Tensor]  # from the next gradient to the estimate

# --- the estimators -------------------------------------------------------------------------------


def momentum_rule(mu: float | None = None) -> Callable[..., Rule]:
    def make(betas: tuple[float, float], **_: Any) -> Rule:
        weight = 1 - betas[0] if mu is None else mu
        m: Tensor | float = 0.0

        def rule(g: Tensor) -> Tensor:
            nonlocal m
            m = betas[0] * m + weight * g
            return torch.as_tensor(m)

        return rule

    return make


def filter_rule(gain_scale: float, gain_power: float = 1.0) -> Callable[..., Rule]:
    def make(betas: tuple[float, float], eps: float) -> Rule:
        return Filter(FilterSettings(betas, eps, gain_scale, gain_power), xp=torch)

    return make


#: By name. SGD-EMA is exactly SGD-CM times 1 - beta.
ESTIMATORS: dict[str, Callable[..., Rule]] = {
    "g": lambda **_: torch.as_tensor,
    "sgd-ema": momentum_rule(),
    "sgd-cm": momentum_rule(1.0),
    "ema": filter_rule(0.0),  # bias-corrected
    "sgdf": filter_rule(2.0),
    "sgdf-k": filter_rule(1.0),
    "sgdf-root": filter_rule(1.0, 0.5),
}


# --- their errors ---------------------------------------------------------------------------------


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
    """Bias, variance and mean squared error of gradient estimators while a model trains.

    The model is used in its current mode. Batch norm has to be in eval mode: in train mode the
    gradient over all images is not the mean of the gradients of batches.

    Args:
        model: left as it is.
        loss: called as ``loss(outputs, targets)``, returns the average over a batch's images.
        data: yields batches ``(inputs, targets)`` of tensors, of equal shapes but for the number.
        optimizer_factory: makes the optimizer from a list of parameters.
        steps: how many the model is trained for.
        every: measure at the first and at every `every`-th step.
        replicas: at least 3, for the standard errors.
        batch: images per step.
        betas: of the estimators; momentum uses the first.
        eps: of the filters.
        estimators: names in `ESTIMATORS`.
        coordinates: about how many are sampled; a few of every parameter.
        seed: of all random numbers.
        progress: show a bar.

    Examples:
        >>> import torch
        >>> from sgdf import SGDF
        >>> model = torch.nn.Linear(4, 2)
        >>> data = [(torch.randn(8, 4), torch.randint(0, 2, (8,)))]
        >>> loss = torch.nn.functional.cross_entropy
        >>> def factory(params):
        ...     return SGDF(params, lr=0.1)
        >>> errors = estimator_errors(
        ...     model, loss, data, optimizer_factory=factory, steps=4, every=2, batch=4,
        ...     progress=False,
        ... )
        >>> errors.ratio("ema", to="ema").value
        1.0
    """
    device = next(iter(trainable(model).values())).device
    check_arguments(model, steps, every, replicas, estimators)
    x, y = joined(read_batches(data, device))
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        full_precision(),
        progress_counter("steps", progress) as counter,
    ):
        torch.manual_seed(seed)
        counter.begin("errors", steps)
        training = TrainedCopy(copy.deepcopy(model), loss, x, y, coordinates, seed)
        optimizer = optimizer_factory(training.parameters)
        rules = {name: ESTIMATORS[name](betas=betas, eps=eps) for name in estimators}
        measurements: list[ErrorsAtStep] = []
        for step, g in training.steps(optimizer, steps, batch, replicas, seed):
            estimates = {name: torch.as_tensor(rule(g)) for name, rule in rules.items()}
            if step == 1 or step % every == 0:
                measurements.append(training.measure(step, g, estimates))
            counter.tick()
    size = sum(p.numel() for p in training.parameters)
    return EstimatorErrors(
        *(type(optimizer).__name__, len(x), batch, replicas, len(training.weights), size),
        *(betas, eps, seed, measurements),
    )


def check_arguments(
    model: nn.Module, steps: int, every: int, replicas: int, estimators: Sequence[str]
) -> None:
    if steps < 1 or every < 1:
        raise ValueError(f"steps and every must be at least 1, not {steps} and {every}")
    if replicas < 3:
        raise ValueError(f"replicas must be at least 3, for standard errors, not {replicas}")
    for name in estimators:
        if name not in ESTIMATORS:
            raise ValueError(f"there is no estimator {name!r}; there are {', '.join(ESTIMATORS)}")
    for name, norm in batch_norms(model).items():
        if norm.training:
            raise ValueError(
                f"{name or 'the model'} is batch norm in train mode, where there is no true "
                "gradient: put it into eval mode, or use a model without it"
            )


def joined(batches: Batches) -> tuple[Tensor, Tensor]:
    try:
        xs, ys = zip(*batches, strict=True)
        return torch.cat(xs), torch.cat(ys)
    except RuntimeError as error:
        raise ValueError(f"the batches of data cannot be joined: {error}") from None


def generator(seed: int, stream: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def shuffled_batches(images: int, batch: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Indices of batches, epoch after epoch."""
    while True:
        order = torch.randperm(images, generator=stream)
        yield from order.split(batch)  # type: ignore[no-untyped-call]


class TrainedCopy:
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
        # A chosen coordinate stands for all that were not chosen of its parameter.
        self.weights = (sizes / counts / sizes.sum()).repeat_interleave(counts).to(x.device)
        self.truth: tuple[int, Tensor] | None = None  # step and gradient of the last measurement

    def loss_of(self, index: Tensor) -> Tensor:
        index = index.to(self.x.device)
        return self.loss(self.model(self.x[index]), self.y[index])

    def gradient(self, index: Tensor) -> Tensor:
        return self._gradient(self.loss_of(index))

    def _gradient(self, loss: Tensor) -> Tensor:
        grads = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return gather(self.picks, [g for g in grads if g.numel()])

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

    def steps(
        self, optimizer: Optimizer, steps: int, batch: int, replicas: int, seed: int
    ) -> Iterator[tuple[int, Tensor]]:
        """Train; before each step give its number and the gradients of the replicas, as rows."""
        images = len(self.x)
        if not 1 <= batch <= images:
            raise ValueError(f"batch must be from 1 to {images}, the number of images, not {batch}")
        order = shuffled_batches(images, batch, generator(seed, 0))
        streams = [generator(seed, 1 + r) for r in range(replicas)]
        for number in range(1, steps + 1):
            drawn = [torch.randint(images, (batch,), generator=stream) for stream in streams]
            yield number, torch.stack([self.gradient(index) for index in drawn])
            self.step(optimizer, next(order), number)

    def step(self, optimizer: Optimizer, index: Tensor, number: int) -> None:
        optimizer.zero_grad()
        loss = self.loss_of(index)
        if not loss.isfinite():
            raise ValueError(
                f"the training loss is {loss.item()} at step {number}: lower the learning rate"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def measure(self, step: int, g: Tensor, estimates: dict[str, Tensor]) -> ErrorsAtStep:
        loss, truth = self.true_gradient()
        if not math.isfinite(loss):
            raise ValueError(f"the mean loss over all images is {loss} at step {step}")
        if self.truth is None:  # at the first measurement
            checked_loss(self.model, self.loss, [(self.x[:FULL_BATCH], self.y[:FULL_BATCH])])
        errors = {name: decompose(e - truth, self.weights) for name, e in estimates.items()}
        noise = decompose(g - truth, self.weights).variance.value
        drift = None
        if self.truth is not None:
            since, before = self.truth
            per_step = (self.weights * (truth - before) ** 2).sum().item() / (step - since)
            drift = math.sqrt(per_step / noise) if noise > 0 else None
        self.truth = step, truth
        signal = (self.weights * truth**2).sum().item()
        return ErrorsAtStep(step, loss, signal, noise, drift, errors)

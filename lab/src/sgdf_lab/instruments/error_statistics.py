"""Squared bias, variance and mean squared error of gradient estimates, with standard errors.

With e_r the estimate of replica r and g* the true gradient: the mean of (e_r - g*)^2 is the mean
squared error, the mean of (e_r - g*)(e_q - g*) over pairs of different replicas is the squared
bias, and their difference is the variance. Each is averaged over the coordinates. Standard errors
are a jackknife over the replicas; coordinates are correlated and do not count as repetitions.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.support.files import write_json


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
    """The errors of all estimators at one step of the training.

    `drift` is q for a random walk whose steps have q times the noise's standard deviation, and
    which gets as far as the gradient did since the last measurement; None at the first one.
    """

    step: int
    loss: float
    signal: float  # the mean square of the true gradient
    noise: float  # the variance of g
    drift: float | None
    errors: dict[str, ErrorParts]

    def relative(self, name: str) -> float:
        """The mean squared error as a fraction of the signal."""
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

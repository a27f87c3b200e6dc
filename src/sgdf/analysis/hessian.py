"""The spectrum of the Hessian: the second derivatives of the mean loss in all parameters.

Nothing of the matrix is stored; `curvlinops` multiplies it on vectors, and three methods ask it for
products:

    the k largest eigenvalues   implicitly restarted Lanczos (ARPACK's eigsh)
    the trace                   their sum, and beside it Hutchinson's average v'Hv over random signs
                                v in the space that is left (Hutch++ with these eigenvectors)
    the density                 stochastic Lanczos quadrature, drawn with a narrow bell
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgdf.analysis import probe
from sgdf.analysis.probe import MODE, Counter, Loss

Array = NDArray[np.float64]
Multiply = Callable[[Tensor], Tensor]  # H v, or H V for a matrix V

TOLERANCE = 1e-5  # of an eigenvalue, by its residual; its error is smaller still
RESTARTS = 50
DENSE = 500  # parameters up to which the whole matrix costs no more than the estimates
LANCZOS_VECTORS = 4
LANCZOS_STEPS = 80
BELL = 0.005  # the density's resolution, as a part of the range of eigenvalues


@dataclass(frozen=True)
class Spectrum:
    """What was measured, and of what: the Hessian of the mean `loss` over `images` images."""

    eigenvalues: Array  # the k largest, the largest first; negative ones where others are fewer
    trace: float
    trace_standard_error: float
    grid: Array | None  # where the density is drawn
    density: Array | None  # of all eigenvalues: it integrates to 1
    nodes: Array | None  # the quadrature behind it: where, and how much of the spectrum
    weights: Array | None
    loss: float
    parameters: int
    images: int
    products: int  # of the Hessian with a vector
    seconds: float
    seed: int
    mode: str = MODE

    @property
    def largest(self) -> float:
        return float(self.eigenvalues[0])


def spectrum(
    model: nn.Module,
    loss: Loss,
    data: Iterable[Any],
    *,
    k: int = 50,
    trace_samples: int = 100,
    density: bool = True,
    seed: int = 0,
    progress: bool = True,
) -> Spectrum:
    """The k largest eigenvalues, the trace and the density of the loss's Hessian.

    The model is looked at in eval mode (batch norm by its running statistics, no dropout), in full
    float32 even where TF32 is on, and is left as it was. The Hessian is that of the parameters that
    require gradients, on the device they are on. The same seed gives the same numbers, on a GPU up
    to the order in which its kernels add.

    Memory: the eigenvalues take 24 k bytes a parameter on the host (k = 50 and ResNet18: 13 GB).

    Args:
        model: its parameters are of one dtype, float32 or float64.
        loss: called as ``loss(outputs, targets)``, gives the *average* over a batch's images.
            Batches of any sizes then make the average over all images. (Where the loss weighs or
            leaves out targets, this is right for batches of equal weight only.)
        data: gives batches ``(inputs, targets)`` of tensors; read once, kept on the device.
        k: how many eigenvalues, counted from the largest down (not by magnitude).
        trace_samples: random vectors for the trace; its standard error falls with their root.
        density: whether to estimate it.
        seed: of all random vectors.
        progress: show a bar that counts products with the Hessian.

    Up to 500 parameters, and for k above a third of their number, the whole matrix is computed:
    then the trace has no error. An eigenvalue that occurs several times exactly may be found fewer
    times by the iterative method.
    """
    start = time.perf_counter()
    parameters = probe.trainable(model)
    size = sum(p.numel() for p in parameters.values())
    check(parameters, size, k, trace_samples)
    with (
        probe.undisturbed(model, seed),
        exact_attention(),
        probe.counting("products", progress) as counter,
    ):
        batches = probe.read(data, next(iter(parameters.values())).device)
        value = probe.checked_loss(model, loss, batches)
        multiply = product(model, loss, list(parameters.values()), batches, counter)
        like = next(iter(parameters.values())).detach()
        if size <= max(DENSE, 3 * k):
            found = from_matrix(multiply, size, k, density, like, counter)
        else:
            found = from_products(multiply, size, k, trace_samples, density, seed, like, counter)
    values, trace, error, quadrature = found
    nodes, weights = quadrature if quadrature else (None, None)
    grid, drawn = smooth(*quadrature) if quadrature else (None, None)
    return Spectrum(
        *(values, trace, error, grid, drawn, nodes, weights, value, size, probe.images(batches)),
        *(counter.done, time.perf_counter() - start, seed),
    )


Found = tuple[Array, float, float, tuple[Array, Array] | None]


def check(parameters: dict[str, nn.Parameter], size: int, k: int, trace_samples: int) -> None:
    dtypes = {p.dtype for p in parameters.values()}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise ValueError(f"the parameters are {names}: convert the model with .float()")
    if not 1 <= k <= size:
        raise ValueError(f"k is a number of eigenvalues from 1 to {size}, the parameters: not {k}")
    if trace_samples < 2:
        raise ValueError(f"trace_samples is at least 2, to know the error, not {trace_samples}")


def exact_attention() -> Any:
    """The fast attention kernels know no second derivatives."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


# --- products with the Hessian -------------------------------------------------------------------


class Average(nn.Module):
    """The loss, as the module that curvlinops asks for; it weighs batches by their images."""

    reduction = "mean"

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)


def product(
    model: nn.Module,
    loss: Loss,
    parameters: list[nn.Parameter],
    batches: probe.Batches,
    counter: Counter,
) -> Multiply:
    from curvlinops import HessianLinearOperator

    operator = HessianLinearOperator(
        *(model, Average(loss), parameters, batches),
        check_deterministic=False,  # in eval mode, on data that was read once, it is
        num_data=probe.images(batches),
    )

    def multiply(vectors: Tensor) -> Tensor:
        result: Tensor = operator @ vectors
        if not result.isfinite().all():
            raise ValueError("the second derivatives of the loss are not finite here")
        counter.tick(1 if vectors.ndim == 1 else vectors.shape[1])
        return result

    return multiply


# --- a small matrix, whole -----------------------------------------------------------------------


def from_matrix(
    multiply: Multiply, size: int, k: int, density: bool, like: Tensor, counter: Counter
) -> Found:
    counter.begin("matrix", size)
    columns = torch.eye(size, dtype=like.dtype, device=like.device).split(64, dim=1)
    matrix = torch.cat([multiply(c).cpu() for c in columns], dim=1).double().numpy()
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1].copy()
    quadrature = (values, np.full(size, 1 / size)) if density else None
    return values[:k].copy(), float(np.trace(matrix)), 0.0, quadrature


# --- a large matrix, by its products -------------------------------------------------------------


def from_products(
    multiply: Multiply,
    size: int,
    k: int,
    trace_samples: int,
    density: bool,
    seed: int,
    like: Tensor,
    counter: Counter,
) -> Found:
    # One generator a purpose: asking for more of one does not change the others.
    for_start, for_trace, for_density = np.random.default_rng(seed).spawn(3)
    counter.begin("eigenvalues")
    values, vectors = largest(multiply, size, k, for_start, like)
    counter.begin("trace", trace_samples)
    basis = torch.from_numpy(vectors).to(like)
    del vectors
    trace, error = trace_beside(multiply, values, basis, trace_samples, for_trace)
    del basis
    if not density:
        return values, trace, error, None
    counter.begin("density", LANCZOS_VECTORS * LANCZOS_STEPS)
    starts = [torch.from_numpy(for_density.standard_normal(size)) for _ in range(LANCZOS_VECTORS)]
    runs = [lanczos(multiply, start.to(like), LANCZOS_STEPS) for start in starts]
    nodes = np.concatenate([nodes for nodes, _ in runs])
    weights = np.concatenate([weights for _, weights in runs]) / len(runs)
    return values, trace, error, (nodes, weights)


def largest(
    multiply: Multiply, size: int, k: int, random: np.random.Generator, like: Tensor
) -> tuple[Array, Array]:
    """The k largest eigenvalues, the largest first, and their vectors as columns."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    def matvec(vector: Array) -> Array:
        return multiply(torch.from_numpy(vector.ravel()).to(like)).double().cpu().numpy()

    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float64)
    first = random.standard_normal(size)
    try:
        values, vectors = eigsh(
            *(operator, k),
            which="LA",
            ncv=min(size, max(3 * k, 20)),
            tol=TOLERANCE,
            maxiter=RESTARTS,
            v0=first,
            rng=random,
        )
    except ArpackNoConvergence as error:
        raise ValueError(
            f"only {len(error.eigenvalues)} of the {k} largest eigenvalues can be told apart: ask "
            "for fewer, or convert model and data with .double()"
        ) from None
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def trace_beside(
    multiply: Multiply, values: Array, basis: Tensor, samples: int, random: np.random.Generator
) -> tuple[float, float]:
    """The trace and its standard error, knowing the eigenvalues of the vectors in `basis`."""
    rest = np.zeros(samples)
    for i in range(samples):
        signs = torch.from_numpy(2.0 * random.integers(0, 2, len(basis)) - 1).to(basis)
        signs -= basis @ (basis.T @ signs)
        rest[i] = torch.dot(signs.double(), multiply(signs).double()).item()
    error = rest.std(ddof=1) / math.sqrt(samples)
    return float(values.sum() + rest.mean()), float(error)


def lanczos(multiply: Multiply, start: Tensor, steps: int) -> tuple[Array, Array]:
    """Gauss quadrature of the spectrum as `start` sees it: nodes and weights.

    Each new vector is made orthogonal to all before, twice, since rounding would otherwise find
    large eigenvalues again and again.
    """
    from scipy.linalg import eigh_tridiagonal

    vector = start / start.norm()
    basis = torch.zeros(steps, len(start), dtype=start.dtype, device=start.device)
    diagonal, beside = [], []
    for i in range(steps):
        basis[i] = vector
        image = multiply(vector)
        diagonal.append(torch.dot(image.double(), vector.double()).item())
        known = basis[: i + 1]
        for _ in range(2):
            image -= known.T @ (known @ image)
        length = image.double().norm().item()
        if length < 1e-6 * max(map(abs, diagonal)):  # all that this start can see is seen
            break
        beside.append(length)
        vector = image / length
    nodes, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside[: len(diagonal) - 1]))
    return nodes, vectors[0] ** 2


def smooth(nodes: Array, weights: Array, points: int = 1001) -> tuple[Array, Array]:
    """The quadrature as a curve: every node a bell, narrow against the range of all of them."""
    low, high = nodes.min(), nodes.max()
    width = BELL * (high - low) or 1e-3 * (abs(high) or 1)
    grid = np.linspace(low - 5 * width, high + 5 * width, points)
    bells = np.exp(-0.5 * ((grid[:, None] - nodes) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    return grid, bells @ weights

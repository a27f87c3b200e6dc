"""The spectrum of the Hessian: the second derivatives of the mean loss in all parameters.

The matrix is never stored. `curvlinops` computes products with vectors, and three methods use them:

    the k largest eigenvalues   restarted Lanczos: ARPACK's eigsh, which keeps its vectors in host
                                memory
    the trace                   the sum of these eigenvalues, plus Hutchinson's average v'Hv over
                                random signs v in the remaining space (Hutch++)
    the density                 these eigenvalues, plus stochastic Lanczos quadrature of the rest

Up to 500 parameters, and for k above a third of their number, the whole matrix is computed instead:
then the trace has no error.

Memory for the eigenvalues: 24 k bytes per parameter (k = 50 and ResNet18: 13 GB).
"""

import contextlib
import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sgdf_lab.instruments.evaluation import (
    MODE,
    Array,
    Batches,
    Counter,
    Loss,
    checked_loss,
    count_images,
    eval_mode_restored,
    progress_counter,
    read_batches,
    trainable,
)
from sgdf_lab.support.numerics import column_norms

Multiply = Callable[[Tensor], Tensor]  # H v, or H V for a matrix V

# --- products of the Hessian with vectors ---------------------------------------------------------


def hessian_product(
    model: nn.Module,
    loss: Loss,
    parameters: list[nn.Parameter],
    batches: Batches,
    counter: Counter,
) -> Multiply:
    """A function that multiplies the Hessian of the mean loss with a vector or a matrix."""
    from curvlinops import HessianLinearOperator

    operator = HessianLinearOperator(
        *(model, MeanLoss(loss), parameters, batches),
        check_deterministic=False,  # it is: eval mode, and data that was read once
        num_data=count_images(batches),
    )

    def multiply(vectors: Tensor) -> Tensor:
        result: Tensor = operator @ vectors
        if not result.isfinite().all():
            raise ValueError("the second derivatives of the loss are not finite here")
        counter.tick(1 if vectors.ndim == 1 else vectors.shape[1])
        return result

    return multiply


class MeanLoss(nn.Module):
    """The loss as the module that curvlinops expects; it weights batches by their images."""

    reduction = "mean"

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)


def check_symmetry(multiply: Multiply, size: int, like: Tensor, seed: int) -> None:
    """Refuse products that are not symmetric: a correct Hessian is."""
    drawn = np.random.default_rng([seed, 1]).standard_normal((2, size))
    u, v = torch.from_numpy(drawn).to(like)
    hu, hv = multiply(u).double(), multiply(v).double()
    difference = (u.double() @ hv - v.double() @ hu).abs()
    if difference > 1e-3 * torch.maximum(hu.norm(), hv.norm()):
        raise ValueError(
            "torch's second derivatives of this model are wrong: they are not symmetric; the "
            "forward-mode derivative of an operation may be at fault"
        )


# --- second derivatives that torch gets right -----------------------------------------------------


@contextlib.contextmanager
def twice_differentiable() -> Iterator[None]:
    """Compute attention and layer norm from elementary operations.

    Fused attention has no second derivatives. Those of torch's layer norm, backward and then
    forward, are not even symmetric in torch 2.11 to 2.15.
    """
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), ElementaryLayerNorm():
        # torch warns when it first prepares forward-mode derivatives
        warnings.filterwarnings("ignore", message="`torch.jit.script`")
        warnings.filterwarnings("ignore", message="There is a performance drop")  # of vmap
        yield


class ElementaryLayerNorm(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.layer_norm, nn.functional.layer_norm):
            func = layer_norm
        return func(*args, **(kwargs or {}))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    over = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(over, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(over, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


# --- eigenvalues, trace and density ---------------------------------------------------------------

DENSE = 500  # parameters up to which the whole matrix costs no more than the estimates
LANCZOS_VECTORS = 4
LANCZOS_STEPS = 80
KERNEL_WIDTH = 0.005  # of the density, as a fraction of the range of eigenvalues


@dataclass(frozen=True)
class Spectrum:
    """What was measured of the Hessian of the mean `loss` over `images` images."""

    eigenvalues: Array  # the k largest in descending order; negative if too few are positive
    trace: float
    trace_standard_error: float
    grid: Array | None  # where the density is evaluated
    density: Array | None  # of all eigenvalues; it integrates to 1
    nodes: Array | None  # the quadrature behind it: eigenvalues and their share of the spectrum
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


class Estimates(NamedTuple):
    eigenvalues: Array
    trace: float
    trace_standard_error: float
    quadrature: tuple[Array, Array] | None  # nodes and weights


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

    The model is evaluated in eval mode (batch norm by its running statistics, no dropout), in full
    float32 even if TF32 is on, and is left as it was. The Hessian is that of the parameters that
    require gradients. The same seed gives the same numbers; on a GPU up to the order of its sums.

    Args:
        model: its parameters have one dtype, float32 or float64.
        loss: called as ``loss(outputs, targets)``, returns the *average* over a batch's images.
            (With targets that are weighted or ignored, use batches of equal total weight.)
        data: yields batches ``(inputs, targets)`` of tensors; read once, kept on the device.
        k: number of eigenvalues, from the largest down (not by magnitude).
        trace_samples: random vectors for the trace; its standard error falls with their root.
        density: whether to estimate it.
        seed: of all random vectors.
        progress: show a bar that counts products with the Hessian.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> data = [(torch.randn(8, 4), torch.randint(0, 2, (8,)))]
        >>> loss = torch.nn.functional.cross_entropy
        >>> found = spectrum(model, loss, data, k=2, progress=False)  # doctest: +SKIP
        >>> found.largest, found.trace  # doctest: +SKIP
    """
    start = time.perf_counter()
    parameters = trainable(model)
    size = sum(p.numel() for p in parameters.values())
    check_arguments(parameters, size, k, trace_samples)
    like = next(iter(parameters.values())).detach()
    counted = progress_counter("products", progress)
    with eval_mode_restored(model, seed), twice_differentiable(), counted as counter:
        batches = read_batches(data, like.device)
        own_loss = checked_loss(model, loss, batches)
        multiply = hessian_product(model, loss, list(parameters.values()), batches, counter)
        check_symmetry(multiply, size, like, seed)
        if size <= max(DENSE, 3 * k):
            estimates = from_matrix(multiply, size, k, density, like, counter)
        else:
            amount = k, trace_samples, density
            estimates = from_products(multiply, size, *amount, seed, like, counter)
    values, trace, error, quadrature = estimates
    nodes, weights = quadrature or (None, None)
    grid, curve = smooth(*quadrature) if quadrature else (None, None)
    return Spectrum(
        *(values, trace, error, grid, curve, nodes, weights, own_loss, size),
        *(count_images(batches), counter.done, time.perf_counter() - start, seed),
    )


def check_arguments(
    parameters: dict[str, nn.Parameter], size: int, k: int, trace_samples: int
) -> None:
    dtypes = {p.dtype for p in parameters.values()}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise ValueError(f"the parameters are {names}: convert the model with .float()")
    if not 1 <= k <= size:
        raise ValueError(f"k must be from 1 to {size}, the number of parameters, not {k}")
    if trace_samples < 2:
        raise ValueError(f"trace_samples must be at least 2, not {trace_samples}")


# --- two ways to estimate -------------------------------------------------------------------------


def from_matrix(
    multiply: Multiply, size: int, k: int, density: bool, like: Tensor, counter: Counter
) -> Estimates:
    counter.begin("matrix", size)
    columns = torch.split(torch.eye(size, dtype=like.dtype, device=like.device), 64, dim=1)
    matrix = torch.cat([multiply(c).cpu() for c in columns], dim=1).double().numpy()
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1].copy()
    quadrature = (values, np.full(size, 1 / size)) if density else None
    return Estimates(values[:k].copy(), float(np.trace(matrix)), 0.0, quadrature)


def from_products(
    multiply: Multiply,
    size: int,
    k: int,
    trace_samples: int,
    density: bool,
    seed: int,
    like: Tensor,
    counter: Counter,
) -> Estimates:
    # One generator per purpose: more samples of one do not change the others.
    for_start, for_trace, for_density = np.random.default_rng(seed).spawn(3)
    counter.begin("eigenvalues")
    values, known = largest_eigenvalues(multiply, size, k, for_start, like)
    counter.begin("trace", trace_samples)
    trace, error = trace_given(multiply, values, known, trace_samples, for_trace)
    if not density:
        return Estimates(values, trace, error, None)
    counter.begin("density", LANCZOS_VECTORS * LANCZOS_STEPS)
    starts = torch.from_numpy(for_density.standard_normal((size, LANCZOS_VECTORS))).to(like)
    rest = []
    for columns in torch.split(starts, vectors_at_once(size), dim=1):
        rest += lanczos_quadrature(multiply, columns, known, LANCZOS_STEPS)
    share = (size - k) / size / len(rest)
    nodes = np.concatenate([values, *(nodes for nodes, _ in rest)])
    weights = np.concatenate([np.full(k, 1 / size), *(share * weights for _, weights in rest)])
    return Estimates(values, trace, error, (nodes, weights))


def vectors_at_once(size: int) -> int:
    """Vectors to multiply together: for a small model, launching operations takes the time."""
    return min(16, max(1, 1_000_000 // size))


def trace_given(
    multiply: Multiply, values: Array, known: Tensor, samples: int, random: np.random.Generator
) -> tuple[float, float]:
    """The trace and its standard error, given the eigenvalues of the vectors in `known`."""
    size = len(known)
    rest: list[float] = []
    while len(rest) < samples:
        columns = min(vectors_at_once(size), samples - len(rest))
        signs = torch.from_numpy(2.0 * random.integers(0, 2, (size, columns)) - 1).to(known)
        signs = orthogonal_part(known, signs)
        rest += (signs.double() * multiply(signs).double()).sum(0).tolist()
    error = np.std(rest, ddof=1) / math.sqrt(samples)
    return float(values.sum() + np.mean(rest)), float(error)


def smooth(nodes: Array, weights: Array, points: int = 1001) -> tuple[Array, Array]:
    """The quadrature as a curve: a narrow normal density at every node."""
    low, high = nodes.min(), nodes.max()
    width = KERNEL_WIDTH * (high - low) or 1e-3 * (abs(high) or 1)
    grid = np.linspace(low - 5 * width, high + 5 * width, points)
    bells = np.exp(-0.5 * ((grid[:, None] - nodes) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    return grid, bells @ weights


# --- eigenvalues and quadrature, by products ------------------------------------------------------
#
# scipy's eigsh finds the eigenvalues. The density of the rest takes a Lanczos of our own: that of
# curvlinops has neither the projection onto the rest, nor several vectors at once, nor
# reorthogonalisation.

TOLERANCE = 1e-5  # of an eigenvalue's residual, relative to the largest; its error is smaller still
RESTARTS = 50
SEARCH_STEPS = 40  # of Lanczos, to see whether an eigenvalue was missed
NO_START = "ARPACK error -9"  # every product is zero, and so is ARPACK's first vector


def orthogonal_part(known: Tensor, vectors: Tensor) -> Tensor:
    """The part of the vectors that is orthogonal to the columns of `known`."""
    return vectors - known @ (known.T @ vectors)


def lanczos_quadrature(
    multiply: Multiply, starts: Tensor, known: Tensor, steps: int
) -> list[tuple[Array, Array]]:
    """Gauss quadrature of the spectrum orthogonal to `known`: nodes and weights for each start.

    Each new vector is made orthogonal to all previous ones, twice. Without that, rounding errors
    bring the largest eigenvalues back again and again, as in curvlinops' `fast_lanczos`.
    """
    from scipy.linalg import eigh_tridiagonal

    vectors = orthogonal_part(known, starts)
    vectors /= column_norms(vectors)
    basis = torch.zeros(steps, *starts.shape, dtype=starts.dtype, device=starts.device)
    diagonal, off_diagonal = [], []
    for i in range(steps):
        basis[i] = vectors
        images = multiply(vectors)
        diagonal.append((images.double() * vectors.double()).sum(0))
        for _ in range(2):
            images = orthogonal_part(known, images)
            along = torch.einsum("snc,nc->sc", basis[: i + 1], images)
            images -= torch.einsum("snc,sc->nc", basis[: i + 1], along)
        lengths = column_norms(images)
        # A start that reaches no further continues with zeros, which get no weight.
        ended = lengths <= 1e-6 * torch.stack(diagonal).abs().amax(0)
        vectors = torch.where(ended, 0, images / lengths.to(images))
        off_diagonal.append(torch.where(ended, 0, lengths))
    rules = []
    for d, e in zip(
        torch.stack(diagonal, 1).cpu(), torch.stack(off_diagonal, 1).cpu(), strict=True
    ):
        nodes, parts = eigh_tridiagonal(d.numpy(), e[:-1].numpy())
        reached = parts[0] ** 2 > 1e-16
        rules.append((nodes[reached], parts[0, reached] ** 2))
    return rules


def largest_eigenvalues(
    multiply: Multiply, size: int, k: int, random: np.random.Generator, like: Tensor
) -> tuple[Array, Tensor]:
    """The k largest eigenvalues in descending order, and their vectors as columns.

    Lanczos finds one vector of an eigenvalue that occurs several times. So the space orthogonal to
    the vectors is searched afterwards, and solved again as long as it has a larger eigenvalue.
    """
    values, known = solve(multiply, size, k, random, like)
    while True:
        start = torch.from_numpy(random.standard_normal((size, 1))).to(like)
        ((nodes, _),) = lanczos_quadrature(multiply, start, known, SEARCH_STEPS)
        if nodes.max() <= values[-1] + TOLERANCE * abs(values[0]):
            return values, known
        low = values[-1] - abs(values[0])  # moves the known ones below all that matter

        def deflated(vectors: Tensor, known: Tensor = known, low: float = low) -> Tensor:
            inside = known @ (known.T @ vectors)
            return orthogonal_part(known, multiply(vectors - inside)) + low * inside

        more, vectors = solve(deflated, size, k, random, like)
        if more[0] <= values[-1]:  # the larger value was a rounding error
            return values, known
        together, columns = np.append(values, more), torch.cat([known, vectors], dim=1)
        order = np.argsort(together)[::-1][:k].copy()
        values, known = together[order], columns[:, torch.from_numpy(order).to(like.device)]


def solve(
    multiply: Multiply, size: int, k: int, random: np.random.Generator, like: Tensor
) -> tuple[Array, Tensor]:
    """The k largest eigenvalues and their vectors, by ARPACK (vectors on the host)."""
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    def matvec(vector: Array) -> Array:
        return multiply(torch.from_numpy(vector.ravel()).to(like)).double().cpu().numpy()

    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float64)
    first = random.standard_normal(size)
    # Before scipy 1.17 restarts used ARPACK's own random numbers, with a fixed seed.
    restarts = {"rng": random} if "rng" in inspect.signature(eigsh).parameters else {}
    try:
        values, vectors = eigsh(
            *(operator, k),
            which="LA",
            ncv=min(size, max(3 * k, 20)),
            tol=TOLERANCE,
            maxiter=RESTARTS,
            v0=first,
            **restarts,
        )
    except ArpackNoConvergence as error:
        raise ValueError(
            f"only {len(error.eigenvalues)} of the {k} largest eigenvalues can be resolved: ask "
            "for fewer, or convert model and data with .double()"
        ) from None
    except ArpackError as error:
        if not str(error).startswith(NO_START):
            raise
        values, vectors = np.zeros(k), np.eye(size, k)
    order = np.argsort(values)[::-1].copy()
    return values[order], torch.from_numpy(vectors[:, order]).to(like)

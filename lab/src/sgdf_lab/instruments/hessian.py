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
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
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
from sgdf_lab.instruments.lanczos import (
    Multiply,
    lanczos_quadrature,
    largest_eigenvalues,
    orthogonal_part,
)

# Products of the Hessian with vectors, and the second derivatives they need.


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


# Eigenvalues, trace and density of a model's Hessian, from the whole matrix or from products.

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

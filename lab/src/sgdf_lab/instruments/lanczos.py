"""The largest eigenvalues and the spectrum of a symmetric matrix that is known by its products.

scipy's eigsh finds the eigenvalues. The density of the rest of the spectrum takes a Lanczos of our
own: curvlinops has neither the projection onto the rest, nor several vectors at once, nor
reorthogonalisation.
"""

import inspect
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.support.numerics import column_norms

Multiply = Callable[[Tensor], Tensor]  # H v, or H V for a matrix V

TOLERANCE = 1e-5  # of an eigenvalue's residual, relative to the largest; its error is smaller still
RESTARTS = 50
NO_START = "ARPACK error -9"  # every product is zero, and so is ARPACK's first vector


def orthogonal_part(known: Tensor, vectors: Tensor) -> Tensor:
    """The part of the vectors that is orthogonal to the columns of `known`."""
    return vectors - known @ (known.T @ vectors)


# --- quadrature -----------------------------------------------------------------------------------


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


SEARCH_STEPS = 40  # of Lanczos, to see whether an eigenvalue was missed


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

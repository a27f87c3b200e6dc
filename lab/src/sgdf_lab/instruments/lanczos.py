"""The largest eigenvalues and the spectrum of a symmetric matrix that is known by its products.

On a CPU, scipy's eigsh finds the eigenvalues. Lanczos on torch tensors is for a GPU, where eigsh
would move every vector to the host, and for the density of the rest of the spectrum: curvlinops has
neither the projection onto the rest, nor several vectors at once, nor reorthogonalisation.
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


def orthogonal_part(known: Tensor, vectors: Tensor) -> Tensor:
    """The part of the vectors that is orthogonal to the columns of `known`."""
    return vectors - known @ (known.T @ vectors)


def orthogonal_part_twice(known: Tensor, vectors: Tensor) -> Tensor:
    """Repeated, because rounding leaves too much after a single pass."""
    return orthogonal_part(known, orthogonal_part(known, vectors))


def random_vector(random: np.random.Generator, size: int, like: Tensor) -> Tensor:
    return torch.from_numpy(random.standard_normal(size)).to(like)


def too_close(resolved: int, k: int) -> ValueError:
    return ValueError(
        f"only {resolved} of the {k} largest eigenvalues can be resolved: ask for fewer, or "
        "convert model and data with .double()"
    )


# --- the largest eigenvalues ----------------------------------------------------------------------


def restarted_lanczos(
    multiply: Multiply, size: int, k: int, random: np.random.Generator, like: Tensor
) -> tuple[Array, Tensor]:
    """The k largest eigenvalues and their vectors, by Lanczos with thick restarts.

    The rows of `basis` are orthonormal, and `small` is the Hessian projected onto them. When the
    basis is full, its Ritz vectors of the largest eigenvalues and the direction of the next
    product become a new, shorter basis.
    """
    room = min(size - 1, max(4 * k, 20))
    basis = torch.empty(room, size, dtype=like.dtype, device=like.device)
    small = np.zeros((room, room))
    following = random_vector(random, size, like)
    following /= column_norms(following)
    kept, converged = 0, 0
    for _ in range(RESTARTS):
        following, length = extend_basis(multiply, basis, small, kept, following, random)
        values, parts = np.linalg.eigh(small)
        values, parts = values[::-1].copy(), parts[:, ::-1].copy()
        residuals = length * np.abs(parts[-1])
        converged = int((residuals[:k] <= TOLERANCE * np.abs(values).max()).sum())
        kept = k if converged == k else k + (room - k) // 2
        vectors = torch.from_numpy(parts[:, :kept].T.copy()).to(like) @ basis
        if converged == k:
            return values[:k], vectors.T
        basis[:kept] = vectors
        small[:] = 0
        small[range(kept), range(kept)] = values[:kept]
        small[kept, :kept] = small[:kept, kept] = length * parts[-1, :kept]
    raise too_close(converged, k)


def extend_basis(
    multiply: Multiply,
    basis: Tensor,
    small: Array,
    kept: int,
    following: Tensor,
    random: np.random.Generator,
) -> tuple[Tensor, float]:
    """Fill `basis` and `small` from row `kept` on; the next direction, and its length."""
    room, size = basis.shape
    length = 0.0
    for i in range(kept, room):
        basis[i] = following
        image = multiply(following)
        small[i, i] = float(image.double() @ following.double())
        following = orthogonal_part_twice(basis[: i + 1].T, image)
        length = float(column_norms(following))
        if length <= 1e-6 * np.abs(small).max():  # the start reaches no further: take a new one
            length = 0.0
            following = orthogonal_part_twice(basis[: i + 1].T, random_vector(random, size, basis))
        following = following / column_norms(following)
        if i + 1 < room:
            small[i, i + 1] = small[i + 1, i] = length
    return following, length


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
    solver = restarted_lanczos if like.is_cuda else arpack
    return solver(multiply, size, k, random, like)


def arpack(
    multiply: Multiply, size: int, k: int, random: np.random.Generator, like: Tensor
) -> tuple[Array, Tensor]:
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
        raise too_close(len(error.eigenvalues), k) from None
    except ArpackError:  # it cannot start if all products are zero
        return restarted_lanczos(multiply, size, k, random, like)
    order = np.argsort(values)[::-1].copy()
    return values[order], torch.from_numpy(vectors[:, order]).to(like)

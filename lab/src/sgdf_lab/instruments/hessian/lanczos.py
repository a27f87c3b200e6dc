"""Lanczos iterations on torch tensors, on whatever device they are."""

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.instruments.hessian.products import Multiply
from sgdf_lab.support.numerics import column_norms

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

    Each new vector is made orthogonal to all previous ones, twice: with rounding errors alone,
    large eigenvalues would be found again and again.
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

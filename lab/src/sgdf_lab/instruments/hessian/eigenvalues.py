"""The k largest eigenvalues of a symmetric matrix that is known by its products."""

import inspect

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.instruments.hessian.lanczos import (
    RESTARTS,
    TOLERANCE,
    lanczos_quadrature,
    orthogonal_part,
    restarted_lanczos,
    too_close,
)
from sgdf_lab.instruments.hessian.products import Multiply

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

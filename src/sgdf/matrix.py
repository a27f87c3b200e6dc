"""The update of a matrix, stated once: filter, scale in an eigenbasis, orthogonalise.

`sgdf.filter` with its moments in another place: the averages of a matrix G stay in its own
coordinates, s and v live in the eigenbasis of L = E[G G^T] and R = E[G^T G], where Adam's division
is SOAP's. The functions take arrays of shape (..., m, n) of torch or jax.numpy (`xp`), and compute
in their dtype. The JAX version and the tests' float64 reference call them; `kernels.matrix` repeats
them on batches of equal shapes and is tested against them.
"""

import math
from typing import Any, NamedTuple

from sgdf.filter import (
    FLOAT64,
    Corrections,
    FilterSettings,
    NumberRange,
    at_least,
    averaged,
    averaged_square,
    bias_corrections,
    estimate,
    largest_gradient,
    one_minus_power,
)

__all__ = [
    "COEFFICIENTS",
    "LR_SCALES",
    "MatrixSettings",
    "MatrixState",
    "Sides",
    "corrections",
    "denominator",
    "direction",
    "lr_scale",
    "newton_schulz",
    "refreshed",
    "rotate",
    "rotate_back",
    "roundoff",
    "shares",
    "start",
    "trend",
    "with_first_gradient",
]

#: Of the odd polynomial a x + b x^3 + c x^5: five steps bring singular values near 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
#: A matrix whose norm is below counts as one that goes to 0: its step does, too.
SMALLEST_NORM = 1e-7
#: How the length of an orthogonal step follows the shape of its matrix, by torch's names.
LR_SCALES = ("original", "match_rms_adamw", "spectral_unclamped")


class MatrixSettings(NamedTuple):
    """The settings of a matrix step, as optimizers keep them and kernels receive them."""

    filter: FilterSettings = FilterSettings((0.85, 0.95), 0.0, 0.1, 0.0)
    slow_beta: Any = 0.98  #: decay rate of the second average
    slow_weight: Any = 0.56  #: its part of the trend; 0: it is not kept
    eigenbasis: bool = False  #: whether there is Adam's division in the eigenbasis
    eps: Any = 1e-8  #: of that division
    basis_decay: Any = 0.95  #: decay rate of L and R
    max_basis_dim: int = 1024  #: a longer side keeps its own coordinates
    turn_moments: bool = True  #: whether s and v turn with the basis; else they are only sorted
    orthogonalise: bool = True
    ns_steps: int = 5
    ns_coefficients: tuple[Any, Any, Any] = COEFFICIENTS
    adjust_lr_fn: str | None = "match_rms_adamw"  #: one of `LR_SCALES`, None: "original"

    @property
    def has_slow(self) -> bool:
        """Whether there is a second average."""
        return not (isinstance(self.slow_weight, (int, float)) and self.slow_weight == 0)

    def has_basis(self, side: int) -> bool:
        """Whether a side of this length has an eigenbasis."""
        return self.eigenbasis and 1 < side <= self.max_basis_dim


class Sides(NamedTuple):
    """A matrix for each side of G; None: the identity."""

    left: Any = None
    right: Any = None


class MatrixState(NamedTuple):
    """What a step remembers; None for what it does not need."""

    m: Any  #: average of G, "exp_avg" in the state of an optimizer
    slow: Any = None  #: the second average, "exp_avg_slow"
    s: Any = None  #: fluctuation in the eigenbasis, "exp_var"
    v: Any = None  #: second moment in the eigenbasis, "exp_avg_sq"
    factors: Sides = Sides()  #: L and R
    basis: Sides = Sides()  #: Q_L and Q_R, the eigenvectors in columns, largest first


def start(g: Any, settings: MatrixSettings, xp: Any) -> MatrixState:
    """The state before the first gradient, which has the shape of g."""
    zero = xp.zeros_like(g)
    kept = settings.eigenbasis, not settings.filter.constant_gain
    return MatrixState(
        m=zero,
        slow=zero if settings.has_slow else None,
        s=zero if kept[1] else None,
        v=zero if kept[0] else None,
    )


# --- filter -----------------------------------------------------------------------------------


def trend(m: Any, slow: Any, settings: MatrixSettings) -> Any:
    """(1-w) m + w slow: one average, whose weights are those of both."""
    if slow is None:
        return m
    return (1 - settings.slow_weight) * m + settings.slow_weight * slow


def corrections(settings: MatrixSettings, t: Any, t2: Any, xp: Any = math) -> Corrections:
    """`filter.bias_corrections` of the mixed trend.

    With decay rates b, c and weights 1-w, w the trend weights the gradient k steps ago by
    a_k = (1-w)(1-b) b^k + w (1-c) c^k. The correction of the trend is the sum of a_k, the
    variance of the trend in units of a gradient's the sum of a_k^2.

    Args:
        settings: of the step.
        t: how many gradients the averages have seen.
        t2: how many s and v have seen: fewer, if the averages come from another optimizer.
        xp: the namespace of t: math, torch or jax.numpy.
    """
    (beta1, beta2), switch = settings.filter.betas, settings.filter.bias_correction
    if not settings.has_slow:
        of_trend = bias_corrections(t, beta1, beta2, xp=xp, bias_correction=switch).trend
        variance = _overlap(beta1, beta1, t, xp)
    else:
        slow, w = settings.slow_beta, settings.slow_weight
        of_trend = (1 - w) * one_minus_power(beta1, t, xp) + w * one_minus_power(slow, t, xp)
        variance = (
            (1 - w) * (1 - w) * _overlap(beta1, beta1, t, xp)
            + 2 * w * (1 - w) * _overlap(beta1, slow, t, xp)
            + w * w * _overlap(slow, slow, t, xp)
        )
    return Corrections(of_trend if switch else 1.0, variance / one_minus_power(beta2, t2, xp))


def _overlap(b: Any, c: Any, t: Any, xp: Any) -> Any:
    """The sum of (1-b) b^k (1-c) c^k over the last t gradients."""
    return (1 - b) * (1 - c) / (1 - b * c) * one_minus_power(b * c, t, xp)


def largest_entry(settings: MatrixSettings, rows: int, columns: int, numbers: NumberRange) -> Any:
    """What entries are clipped to: `filter.largest_gradient`, so that not even the sum of the
    squares of all entries overflows.
    """
    return largest_gradient(settings.filter.betas[1], numbers) / math.sqrt(max(rows * columns, 1))


# --- eigenbasis -------------------------------------------------------------------------------


def _transposed(x: Any, xp: Any) -> Any:
    return xp.swapaxes(x, -1, -2)


def rotate(x: Any, basis: Sides, xp: Any) -> Any:
    """Q_L^T x Q_R: x in the coordinates of the basis."""
    if basis.left is not None:
        x = _transposed(basis.left, xp) @ x
    return x if basis.right is None else x @ basis.right


def rotate_back(x: Any, basis: Sides, xp: Any) -> Any:
    """Q_L x Q_R^T: the inverse of `rotate`."""
    if basis.left is not None:
        x = basis.left @ x
    return x if basis.right is None else x @ _transposed(basis.right, xp)


def _products(g: Any, settings: MatrixSettings, xp: Any) -> Sides:
    """G G^T and G^T G, for the sides that have a basis."""
    rows, columns = g.shape[-2:]
    left = g @ _transposed(g, xp) if settings.has_basis(rows) else None
    right = _transposed(g, xp) @ g if settings.has_basis(columns) else None
    return Sides(left, right)


def with_first_gradient(
    g: Any, state: MatrixState, settings: MatrixSettings, numbers: NumberRange, xp: Any
) -> MatrixState:
    """The state after the first gradient, which only builds the basis.

    A gradient is diagonal in its own eigenbasis: there its other entries are rounding, and Adam's
    division would make them as large as the rest.
    """
    rows, columns = g.shape[-2:]
    largest = largest_entry(settings, rows, columns, numbers)
    products = _products(xp.clip(g, -largest, largest), settings, xp)
    factors = [None if x is None else (1 - settings.basis_decay) * x for x in products]
    basis = [None if x is None else eigenvectors(x, numbers, xp) for x in factors]
    return state._replace(factors=Sides(*factors), basis=Sides(*basis))


def _in_scale(factor: Any, numbers: NumberRange, xp: Any) -> Any:
    """The factor with 1 as its largest entry: products of small numbers would underflow."""
    diagonal = xp.linalg.diagonal(factor)
    largest = xp.amax(diagonal, -1)[..., None, None]
    return factor / xp.clip(largest, numbers.smallest, None)


def eigenvectors(factor: Any, numbers: NumberRange, xp: Any) -> Any:
    """The eigenvectors of a factor in columns, those of large eigenvalues first."""
    finite = xp.nan_to_num(_in_scale(factor, numbers, xp))  # eigh raises an error for NaN
    return xp.flip(xp.linalg.eigh(finite)[1], (-1,))


def refreshed(
    state: MatrixState, settings: MatrixSettings, numbers: NumberRange, xp: Any
) -> MatrixState:
    """The basis after a step of power iteration, Q <- QR(L Q), with s and v following it.

    The columns are sorted by diag(Q^T L Q) before. An entry of v is the mean square of an entry
    of Q_L^T G Q_R. With O = Q^T Q_new, v_new = (O_L o O_L)^T v (O_R o O_R) are the mean squares in
    the new basis if the entries are uncorrelated; so every row of v keeps its sum.
    """
    s, v = state.s, state.v
    basis: list[Any] = []
    for axis, factor, old in zip((-2, -1), state.factors, state.basis, strict=True):
        if old is None:
            basis.append(None)
            continue
        new, order = _power_iteration(factor, old, numbers, xp)
        columns = order[..., None, :]
        at = order[..., :, None] if axis == -2 else columns
        s, v = (x if x is None else _take(x, at, axis, xp) for x in (s, v))
        if settings.turn_moments:
            squares = _take(_transposed(old, xp) @ new, order[..., :, None], -2, xp) ** 2
            turn = Sides(left=squares) if axis == -2 else Sides(right=squares)
            s, v = (x if x is None else rotate(x, turn, xp) for x in (s, v))
        basis.append(new)
    return state._replace(s=s, v=v, basis=Sides(*basis))


def _power_iteration(factor: Any, basis: Any, numbers: NumberRange, xp: Any) -> tuple[Any, Any]:
    """QR(L Q), the columns of L Q sorted; and their order."""
    product = _in_scale(factor, numbers, xp) @ basis
    order = xp.argsort(-(basis * product).sum(-2), -1)
    product = _take(product, order[..., None, :], -1, xp)
    return xp.linalg.qr(product)[0], order


def _take(x: Any, at: Any, axis: int, xp: Any) -> Any:
    """The rows or columns of every matrix in an order of its own."""
    if hasattr(xp, "take_along_axis"):
        return xp.take_along_axis(x, at, axis)
    return xp.gather(x, axis, at.expand(x.shape))  # torch; its take_along_dim checks every index


def denominator(v_hat: Any, settings: MatrixSettings, numbers: NumberRange, xp: Any) -> Any:
    """sqrt(v^) + eps, where entries of v^ that are rounding count as large as rounding may be.

    A rotation rounds every entry relative to the largest. Where a matrix has no gradient but
    rounding, that of the average can be far larger than that of the gradients in v.
    """
    root = xp.sqrt(v_hat)
    largest = xp.amax(root, (-2, -1))[..., None, None]
    return xp.maximum(root, roundoff(numbers) * largest) + settings.eps


def roundoff(numbers: NumberRange) -> float:
    """The size of rounding errors in a product of matrices, relative to its largest entry."""
    return 2.0**-20 if numbers.largest_exponent <= 128 else 2.0**-49


def shares(costs: list[float], count: int) -> list[int]:
    """Which of `count` shares each item goes to, so that the sums of their costs are about equal.

    >>> shares([1, 8, 4, 4, 1], 2)
    [0, 0, 1, 1, 1]
    """
    sums = [0.0] * count
    chosen = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        chosen[i] = sums.index(min(sums))
        sums[chosen[i]] += costs[i]
    return chosen


# --- orthogonalise ----------------------------------------------------------------------------


def newton_schulz(
    x: Any, steps: int, coefficients: tuple[Any, Any, Any], xp: Any, eps: Any = SMALLEST_NORM
) -> Any:
    """The matrix with the singular vectors of x and singular values near 1.

    Each step maps the singular values by z -> a z + b z^3 + c z^5. Muon's coefficients, the
    default, end between 0.7 and 1.2.
    """
    a, b, c = coefficients
    tall = x.shape[-2] > x.shape[-1]
    x = _transposed(x, xp) if tall else x
    norm = xp.sqrt((x * x).sum((-2, -1)))[..., None, None]
    x = x / xp.clip(norm, eps, None)
    for _ in range(steps):
        gram = x @ _transposed(x, xp)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return _transposed(x, xp) if tall else x


def lr_scale(adjust_lr_fn: str | None, rows: int, columns: int) -> float:
    """The factor on lr for an orthogonal step of this shape.

    "match_rms_adamw" gives the entries of the step the root mean square of AdamW's, about 0.2, so
    that AdamW's rates carry over. "original" is Muon's first form, for rates around 0.02.
    """
    if adjust_lr_fn == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    if adjust_lr_fn == "spectral_unclamped":
        return math.sqrt(rows / columns)
    return math.sqrt(max(1, rows / columns))


# --- the whole update -------------------------------------------------------------------------


def direction(
    g: Any,
    state: MatrixState,
    t: Any,
    settings: MatrixSettings,
    *,
    t2: Any = None,
    numbers: NumberRange = FLOAT64,
    xp: Any,
) -> tuple[Any, MatrixState]:
    """What the learning rate is multiplied with, and the new state.

    With an eigenbasis, the state has to have one: `with_first_gradient` comes before the first
    direction, `refreshed` at regular intervals after one.

    Args:
        g: gradient, of shape (..., m, n).
        state: before this gradient.
        t: the number of this direction, 1 at the first.
        settings: of the step.
        t2: that number for s and v; default: t.
        numbers: the range of the dtype of g.
        xp: torch or jax.numpy.
    """
    rows, columns = g.shape[-2:]
    largest = largest_entry(settings, rows, columns, numbers)
    g = xp.clip(g, -largest, largest)
    beta1, beta2 = settings.filter.betas
    xp_of_t = math if isinstance(t, (int, float)) else xp
    t2 = t if t2 is None else t2

    m, slow = averaged(state.m, g, beta1), state.slow
    if slow is not None:
        slow = averaged(slow, g, settings.slow_beta)
    in_basis = rotate(g, state.basis, xp)
    mean = rotate(trend(m, slow, settings), state.basis, xp)

    s, v, factors = state.s, state.v, state.factors
    if s is not None:
        s = averaged_square(s, in_basis - mean, beta2)
    update = estimate(
        in_basis,
        mean,
        s,
        corrections(settings, t, t2, xp_of_t),
        eps=at_least(settings.filter.eps, numbers.smallest, xp),
        gain_scale=settings.filter.gain_scale,
        gain_power=settings.filter.gain_power,
    )
    if v is not None:
        v = averaged_square(v, in_basis, beta2)
        v_hat = v / one_minus_power(beta2, t2, xp_of_t)
        update = rotate_back(update / denominator(v_hat, settings, numbers, xp), state.basis, xp)
        products = zip(factors, _products(g, settings, xp), strict=True)
        decay = settings.basis_decay
        factors = Sides(*(x if x is None else averaged(x, y, decay) for x, y in products))
    if settings.orthogonalise:
        update = newton_schulz(update, settings.ns_steps, settings.ns_coefficients, xp)
        update = update * lr_scale(settings.adjust_lr_fn, rows, columns)
    return update, MatrixState(m, slow, s, v, factors, state.basis)

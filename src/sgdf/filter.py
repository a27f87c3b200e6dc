"""The algorithm, stated once.

Algorithm 1 of "Signal Processing Meets SGD: From Momentum to Filter", in its notation.
The functions use arithmetic alone, so floats, NumPy, torch and JAX arrays all pass through
them, in float64 when given float64. Everything else in this package either calls them or is
tested against them; foreach, C++ and Triton cannot call them and repeat them.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "Corrections",
    "FilterSettings",
    "bias_corrections",
    "one_minus_power",
    "wiener_filter",
    "wiener_gain",
]


class FilterSettings(NamedTuple):
    """The settings of the filter, as optimizers keep them and kernels receive them."""

    betas: tuple[Any, Any] = (0.9, 0.999)  #: decay rates of m and of s
    eps: Any = 1e-8  #: term in the denominator of K
    gain_scale: Any = 2.0  #: factor on K
    gain_power: Any = 1.0  #: exponent of K
    correction: bool = True  #: see `bias_corrections`

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "FilterSettings":
        """The filter's settings among those of a parameter group."""
        return cls(*(group[name] for name in cls._fields))

    def corrections(self, step: Any, xp: Any = math) -> "Corrections":
        """`bias_corrections` with these settings."""
        return bias_corrections(step, *self.betas, self.correction, xp)


class Corrections(NamedTuple):
    """The scalars of one step: they are the same for all elements of a gradient."""

    trend: Any  #: m^ = m / trend
    fluctuation: Any  #: s^ = s * fluctuation


def bias_corrections(
    step: Any, beta1: Any, beta2: Any, correction: bool = True, xp: Any = math
) -> Corrections:
    """The bias corrections of m and s after `step` updates (the first step is 1).

    With `correction`, s^ is multiplied by (1-b1)(1-b1^2t)/(1+b1), the paper's ratio of the
    variance of a moving average to the variance of the gradient. `xp` is the namespace of
    `step`: math, torch or jax.numpy.
    """
    trend = one_minus_power(beta1, step, xp)
    fluctuation = 1 / one_minus_power(beta2, step, xp)
    if correction:
        variance_of_mean = (1 - beta1) / (1 + beta1) * one_minus_power(beta1, 2 * step, xp)
        fluctuation = fluctuation * variance_of_mean
    return Corrections(trend, fluctuation)


def one_minus_power(beta: Any, t: Any, xp: Any = math) -> Any:
    """1 - beta^t, computed with expm1: in float32, 1 - 0.999**1 has only four correct digits."""
    if isinstance(beta, (int, float)):
        log_beta = math.log(beta) if beta > 0 else -math.inf
    else:
        log_beta = xp.log(beta)
    return -xp.expm1(t * log_beta)


def wiener_gain(s_hat: Any, residual: Any, eps: Any) -> Any:
    """K = s^ / (s^ + (g - m^)^2 + eps), in [0, 1].

    eps has to be positive in the arithmetic in use: it prevents 0/0.
    """
    return s_hat / (s_hat + residual * residual + eps)


def wiener_filter(
    g: Any,
    m: Any,
    s: Any,
    corrections: Corrections,
    *,
    beta1: Any,
    beta2: Any,
    eps: Any,
    gain_scale: Any = 2.0,
    gain_power: Any = 1.0,
) -> tuple[Any, Any, Any]:
    """One step of the filter, element by element: (g, m, s) -> (g^, m, s).

    The paper's gain is 2K (`gain_scale=2, gain_power=1`), the plain Wiener filter's is K (1, 1),
    that of the authors' 2026 release is K^0.5 (1, 0.5).

    >>> first = bias_corrections(1, 0.9, 0.999)
    >>> g_hat, m, s = wiener_filter(4.0, 0.0, 0.0, first, beta1=0.9, beta2=0.999, eps=1e-8)
    >>> round(g_hat, 12)  # nothing to filter yet: the first estimate is the gradient
    4.0
    """
    m = beta1 * m + (1 - beta1) * g
    s = beta2 * s + (1 - beta2) * (g - m) * (g - m)
    m_hat = m / corrections.trend
    s_hat = s * corrections.fluctuation
    residual = g - m_hat
    gain = wiener_gain(s_hat, residual, eps)
    if not (isinstance(gain_power, (int, float)) and gain_power == 1):
        gain = gain**gain_power
    return m_hat + gain_scale * gain * residual, m, s

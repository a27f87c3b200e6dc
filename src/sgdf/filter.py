"""The algorithm, stated once.

Algorithm 1 of "Signal Processing Meets SGD: From Momentum to Filter", in its notation.
The functions use arithmetic alone, so floats, NumPy, torch and JAX arrays all pass through
them, in float64 when given float64. Everything else in this package either calls them or is
tested against them.
"""

import math
from typing import Any, NamedTuple

__all__ = ["Corrections", "bias_corrections", "one_minus_power", "wiener_filter", "wiener_gain"]


class Corrections(NamedTuple):
    """The scalars of one step, which no element of the gradient enters."""

    trend: Any  #: m^ = m / trend
    fluctuation: Any  #: s^ = s * fluctuation


def bias_corrections(
    step: Any, beta1: Any, beta2: Any, correction: bool = True, xp: Any = math
) -> Corrections:
    """The bias corrections of m and s after `step` updates (the first step is 1).

    `correction` multiplies s^ by (1-b1)(1-b1^2t)/(1+b1), the paper's factor from the variance
    of a gradient to that of its moving average. `xp` is the namespace of `step`: math, torch
    or jax.numpy.
    """
    trend = one_minus_power(beta1, step, xp)
    fluctuation = 1 / one_minus_power(beta2, step, xp)
    if correction:
        variance_of_mean = (1 - beta1) / (1 + beta1) * one_minus_power(beta1, 2 * step, xp)
        fluctuation = fluctuation * variance_of_mean
    return Corrections(trend, fluctuation)


def one_minus_power(beta: Any, t: Any, xp: Any = math) -> Any:
    """1 - beta^t. By expm1, because in float32 1 - 0.999**1 keeps four digits of 0.001."""
    if isinstance(beta, (int, float)):
        log_beta = math.log(beta) if beta > 0 else -math.inf
    else:
        log_beta = xp.log(beta)
    return -xp.expm1(t * log_beta)


def wiener_gain(s_hat: Any, residual: Any, eps: Any) -> Any:
    """K = s^ / (s^ + (g - m^)^2 + eps), in [0, 1].

    eps keeps 0/0 from happening, so it has to be positive in the arithmetic in use.
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

    The paper's gain is 2K (`gain_scale=2, gain_power=1`), the plain Wiener filter's K (1, 1),
    that of the authors' 2026 release K^0.5 (1, 0.5).

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

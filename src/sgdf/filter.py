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
    "SECOND_MOMENTS",
    "Corrections",
    "Denominator",
    "FilterSettings",
    "SecondMomentWeights",
    "bias_corrections",
    "estimate",
    "largest_variance",
    "moment_names",
    "one_minus_power",
    "second_moment",
    "second_moment_weights",
    "update_moments",
    "wiener_filter",
    "wiener_gain",
]

#: What FilterAdam divides by: a moment of its own, or one made from m and s.
SECOND_MOMENTS = ("separate", "derived", "fluctuation")


class FilterSettings(NamedTuple):
    """The settings of the filter, as optimizers keep them and kernels receive them."""

    betas: tuple[Any, Any] = (0.9, 0.999)  #: decay rates of m and of s
    eps: Any = 1e-8  #: term in the denominator of K
    gain_scale: Any = 2.0  #: factor on K
    gain_power: Any = 1.0  #: exponent of K; 0 is a constant gain, which needs no s
    correction: bool = True  #: see `bias_corrections`
    bias_correction: bool = True  #: whether m^ is m / (1 - b1^t), or m itself

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "FilterSettings":
        """The filter's settings among those of a parameter group."""
        settings = {name: group[name] for name in cls._fields if name in group}
        return cls(**{**settings, "eps": gain_eps(group)})

    @property
    def constant_gain(self) -> bool:
        """Whether the gain is `gain_scale` for every element at every step."""
        return isinstance(self.gain_power, (int, float)) and self.gain_power == 0

    def corrections(self, step: Any, xp: Any = math) -> "Corrections":
        """`bias_corrections` with these settings."""
        return bias_corrections(
            step, *self.betas, self.correction, xp, bias_correction=self.bias_correction
        )


class Denominator(NamedTuple):
    """What FilterAdam divides the estimate by: sqrt(v^) + eps."""

    second_moment: str = "separate"  #: where v^ comes from, one of `SECOND_MOMENTS`
    eps: Any = 1e-8


def moment_names(settings: FilterSettings, denominator: Denominator | None) -> tuple[str, ...]:
    """The moments that an update keeps, in the order in which kernels receive them."""
    from_s = denominator is not None and denominator.second_moment != "separate"
    names = ["exp_avg"]
    if from_s or not settings.constant_gain:
        names.append("exp_var")
    if denominator is not None and not from_s:
        names.append("exp_avg_sq")
    return tuple(names)


def gain_eps(group: Mapping[str, Any]) -> Any:
    """The term in the denominator of K: `gain_eps` of a parameter group, if it has one.

    If that is None: `eps`, as in the paper, unless the second moment is one of ours. The paper's
    1e-8 is compared with *squared* gradients, so it closes the gain where gradients are far
    below 1e-4. With 0 (kernels replace it by their smallest normal number) the gain does not
    depend on the magnitude of the gradients.
    """
    own = group.get("gain_eps")
    if own is not None:
        return own
    return group["eps"] if group.get("second_moment", "separate") == "separate" else 0.0


class Corrections(NamedTuple):
    """The scalars of one step: they are the same for all elements of a gradient."""

    trend: Any  #: m^ = m / trend
    fluctuation: Any  #: s^ = s * fluctuation


def bias_corrections(
    step: Any,
    beta1: Any,
    beta2: Any,
    correction: bool = True,
    xp: Any = math,
    *,
    bias_correction: bool = True,
) -> Corrections:
    """The bias corrections of m and s after `step` updates (the first step is 1).

    With `correction`, s^ is multiplied by (1-b1)(1-b1^2t)/(1+b1), the paper's ratio of the
    variance of a moving average to the variance of the gradient. Without `bias_correction` m is
    left as it is, as SGD with momentum does.

    Args:
        step: the number of updates.
        beta1: decay of m.
        beta2: decay of s.
        correction: whether s^ is the variance of the average, or of the gradient.
        xp: the namespace of `step`: math, torch or jax.numpy.
        bias_correction: whether m^ is m / (1 - b1^t).

    Examples:
        >>> trend, fluctuation = bias_corrections(1, 0.9, 0.999)
        >>> round(trend, 6), round(fluctuation, 6)
        (0.1, 10.0)
    """
    trend = one_minus_power(beta1, step, xp) if bias_correction else 1.0
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


# --- the filter -------------------------------------------------------------------------------


def update_moments(g: Any, m: Any, s: Any, beta1: Any, beta2: Any) -> tuple[Any, Any]:
    """The trend and the fluctuation about it after one more gradient; s may be None."""
    m = beta1 * m + (1 - beta1) * g
    if s is not None:
        s = beta2 * s + (1 - beta2) * (g - m) * (g - m)
    return m, s


def largest_variance(beta2: Any, largest_exponent: int) -> Any:
    """The bound on s in arithmetic whose numbers end at 2^largest_exponent (128 in float32).

    The square of a gradient overflows long before the gradient does, and an infinite s would
    never decay. As s^ <= s / (1 - b2), it is finite below this bound, so that the gain is 0 for
    a residual whose square overflows, and not NaN.
    """
    return 2.0 ** (largest_exponent - 2) * (1 - beta2)


def wiener_gain(s_hat: Any, residual: Any, eps: Any) -> Any:
    """K = s^ / (s^ + (g - m^)^2 + eps), in [0, 1].

    eps has to be positive in the arithmetic in use: it prevents 0/0.
    """
    return s_hat / (s_hat + residual * residual + eps)


def estimate(
    g: Any,
    m: Any,
    s: Any,
    corrections: Corrections,
    *,
    eps: Any,
    gain_scale: Any = 2.0,
    gain_power: Any = 1.0,
) -> Any:
    """g^ = m^ + gain (g - m^), from moments that have seen g.

    The gain is gain_scale K^gain_power; with `gain_power=0` it is `gain_scale`, and s is not read.
    """
    m_hat = m / corrections.trend
    residual = g - m_hat
    if isinstance(gain_power, (int, float)) and gain_power == 0:
        return m_hat + gain_scale * residual
    gain = wiener_gain(s * corrections.fluctuation, residual, eps)
    if not (isinstance(gain_power, (int, float)) and gain_power == 1):
        gain = gain**gain_power
    return m_hat + gain_scale * gain * residual


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
    that of the authors' 2026 release is K^0.5 (1, 0.5). A constant gain is (c, 0).

    Args:
        g: gradient; a number or an array of any library.
        m: trend, 0 at the start.
        s: fluctuation, 0 at the start; None for a constant gain.
        corrections: of this step, from `bias_corrections`.
        beta1: decay of m.
        beta2: decay of s.
        eps: term in the denominator of K.
        gain_scale: factor on K.
        gain_power: exponent of K.

    Examples:
        >>> first = bias_corrections(1, 0.9, 0.999)
        >>> g_hat, m, s = wiener_filter(4.0, 0.0, 0.0, first, beta1=0.9, beta2=0.999, eps=1e-8)
        >>> round(g_hat, 12)  # nothing to filter yet: the first estimate is the gradient
        4.0
    """
    m, s = update_moments(g, m, s, beta1, beta2)
    options = {"eps": eps, "gain_scale": gain_scale, "gain_power": gain_power}
    return estimate(g, m, s, corrections, **options), m, s


# --- a second moment from m and s -------------------------------------------------------------


class SecondMomentWeights(NamedTuple):
    """v^ = of_m m^2 + of_s s."""

    of_m: Any
    of_s: Any


def second_moment(m: Any, s: Any, weights: SecondMomentWeights) -> Any:
    """v^, which estimates the mean of g^2 in the place of Adam's moving average of g^2."""
    return weights.of_m * m * m + weights.of_s * s


def second_moment_weights(
    step: Any, beta1: Any, beta2: Any, kind: str, xp: Any = math
) -> SecondMomentWeights:
    """The weights of m^2 and s after `step` updates, for a `kind` of `SECOND_MOMENTS`.

    "fluctuation" is s / (1 - b2^t), as in AdaBelief: the spread of g about its mean alone.

    "derived" is the one combination of m^2 and s whose mean is that of g^2, at every step, for
    gradients g = u + n with a fixed mean u and independent noise n of variance q. As m starts at
    0 and g_k - m_k = b1 (g_k - m_(k-1)), with r = (1-b1)/(1+b1),

        E m_t^2 = (1-b1^t)^2 u^2 + r (1-b1^2t) q
        E (g_k - m_k)^2 = b1^2 (b1^(2k-2) u^2 + (1 + r (1-b1^(2k-2))) q).

    s_t sums the latter with weights (1-b2) b2^(t-k). Solving for the weights that give u^2 + q:

        P = 1 + b1 + ... + b1^(t-1),   Q = 1 + b2 + ... + b2^(t-1),
        S = b2^(t-1) + b2^(t-2) b1^2 + ... + b1^(2t-2),
        v^ = P (Q-S) / (PQ-S) m^^2  +  (P - b1^(t-1)) / (b1 (1-b2) (PQ-S)) s.

    No weight is negative, since b1^k b2^j >= b1^2k b2^j. For large t they tend to 1 and
    1/(b1 (1-b2^t)): E g^2 = E m^2 + E s / b1. At t = 1, where m^^2 and s say the same, v^ = g^2.

    If u moves, v^ follows it as fast as m does, in about 1/(1-b1) steps; Adam's v averages u^2
    over 1/(1-b2) steps.
    """
    one_minus_b2 = one_minus_power(beta2, step, xp)
    if kind == "fluctuation":
        return SecondMomentWeights(0.0, 1 / one_minus_b2)
    one_minus_b1 = one_minus_power(beta1, step, xp)
    p, q = one_minus_b1 / (1 - beta1), one_minus_b2 / (1 - beta2)
    s = _geometric_sum(beta2, beta1 * beta1, step, xp)
    first = step == 1
    # p q - s is 0 in the first step; adding 1 there gives weights that are finite, and not used.
    common = p * q - s + first * 1.0
    of_m = p * (q - s) / common + first * 1.0
    of_s = one_minus_power(beta1, step - 1, xp) / ((1 - beta1) * beta1 * (1 - beta2) * common)
    return SecondMomentWeights(of_m / (one_minus_b1 * one_minus_b1), of_s)


def _geometric_sum(a: Any, b: Any, t: Any, xp: Any) -> Any:
    """a^(t-1) + a^(t-2) b + ... + b^(t-1), as powers of the larger one and of their ratio."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        high, low = max(a, b), min(a, b)
    else:
        high, low = xp.maximum(a, b), xp.minimum(a, b)
    ratio = low / high
    equal = (ratio == 1) * 1.0  # then the fraction would be 0/0, and its limit is t
    fraction = (one_minus_power(ratio, t, xp) + equal * t) / (1 - ratio + equal)
    return high ** (t - 1) * fraction

"""The update rule, stated once.

Algorithm 1 of "Signal Processing Meets SGD: From Momentum to Filter" in its notation, and Adam's
division after it. `direction` is the whole element-wise update. It works on floats and on NumPy,
torch and JAX arrays, in float64 when given float64. The loop in torch, the JAX version, simulations
and the tests' reference call it; foreach, C++ and Triton repeat it and are tested against it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

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


class DefaultForm(NamedTuple):
    """What FilterAdamW does where its user names nothing else."""

    gain_scale: float  #: 2: 2K, 1: K
    second_moment: str
    gain_eps: float = 0.0  #: the filter does not depend on the magnitude of the gradients


#: The form of FilterAdamW, in PyTorch and in JAX.
DEFAULT_FORM = DefaultForm(gain_scale=2.0, second_moment="separate")


def moment_names(settings: FilterSettings, denominator: Denominator | None) -> tuple[str, ...]:
    """The moments that an update keeps, in the order in which kernels receive them."""
    from_s = denominator is not None and denominator.second_moment != "separate"
    names = ["exp_avg"]
    if from_s or not settings.constant_gain:
        names.append("exp_var")
    if denominator is not None and not from_s:
        names.append("exp_avg_sq")
    return tuple(names)


def default_gain_eps(eps: Any, second_moment: str = "separate") -> Any:
    """The term in the denominator of K for `gain_eps=None`.

    It is `eps`, as in the paper, unless the second moment is made from m and s. The paper's 1e-8
    is compared with *squared* gradients, so the gain goes to 0 if gradients are far below 1e-4.
    With 0 (the smallest normal number stands for it) it does not depend on their magnitude.
    """
    return eps if second_moment == "separate" else 0.0


class Moments(NamedTuple):
    """What an update remembers; None for a moment that it does not keep."""

    m: Any  #: trend, "exp_avg" in the state of an optimizer
    s: Any = None  #: fluctuation about the trend, "exp_var"
    v: Any = None  #: moving average of g^2, "exp_avg_sq"


class NumberRange(NamedTuple):
    """The numbers that an update computes with end at 2^largest_exponent."""

    largest_exponent: int
    smallest: float  #: the smallest normal number


FLOAT32 = NumberRange(128, 2.0**-126)
FLOAT64 = NumberRange(1024, 2.0**-1022)

#: The largest step, in units of lr, where moments are in 8 bits: v may be stored as 0 beside an m
#: that is not. With exact moments, the default betas and a v of its own, no step is that long.
LARGEST_8_BIT_UPDATE = 10.0


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


def averaged(average: Any, x: Any, beta: Any) -> Any:
    """The moving average after one more x."""
    return beta * average + (1 - beta) * x


def averaged_square(average: Any, x: Any, beta: Any) -> Any:
    """The moving average of x^2 after one more x."""
    return beta * average + (1 - beta) * x * x


def momentum(g: Any, m: Any, beta: Any, mu: Any) -> Any:
    """Momentum's buffer after one more gradient. Nothing bounds it, as in torch's SGD."""
    return beta * m + mu * g


def update_moments(g: Any, m: Any, s: Any, beta1: Any, beta2: Any) -> tuple[Any, Any]:
    """The trend and the fluctuation about it after one more gradient; s may be None."""
    m = averaged(m, g, beta1)
    return m, s if s is None else averaged_square(s, g - m, beta2)


def largest_gradient(beta2: Any, numbers: NumberRange = FLOAT64) -> Any:
    """The magnitude of a gradient whose square is sure not to overflow: see `without_overflow`.

    With |g| at most b = 2^(E/2 - 4) sqrt(1 - b2), where the numbers end at 2^E, no square
    overflows: (g - m)^2 <= 4 b^2, so s^ <= s / (1 - b2) <= 2^(E - 6), and v^ likewise. In float32
    with b2 = 0.999, b is 3.6e16.
    """
    root = math.sqrt(1 - beta2) if isinstance(beta2, (int, float)) else (1 - beta2) ** 0.5
    return 2.0 ** (numbers.largest_exponent // 2 - 4) * root


def without_overflow(g: Any, m: Any, largest: Any, *, divides: bool, xp: Any = np) -> Any:
    """The gradient that the moments see; g, unless it is larger than `largest_gradient`.

    The square of a gradient overflows long before the gradient does, and an infinite s or v would
    never decay. Where there is a division, the gradient is clipped: m and sqrt(v) come from the
    same number and stay in proportion, so the step is one after any large gradient, about lr.
    Where there is none (SGDF), such a gradient brings no news: the average m stands in for it, so
    the step is like the one before. Infinite gradients are among these; NaN stays NaN.
    """
    if divides:
        return xp.clip(g, -largest, largest)
    return xp.where(abs(g) > largest, m, g)


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
    """v^, which estimates the mean of g^2 instead of Adam's moving average of g^2."""
    return weights.of_m * m * m + weights.of_s * s


def second_moment_weights(
    step: Any, beta1: Any, beta2: Any, kind: str, xp: Any = math
) -> SecondMomentWeights:
    """The weights of m^2 and s after `step` updates, for a `kind` of `SECOND_MOMENTS`.

    "fluctuation" is s / (1 - b2^t), as in AdaBelief: only the spread of g about its mean.

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


# --- the whole update -------------------------------------------------------------------------


def direction(
    g: Any,
    moments: Moments,
    t: Any,
    settings: FilterSettings,
    denominator: Denominator | None = None,
    *,
    corrections: Corrections | None = None,
    largest_update: float | None = None,
    numbers: NumberRange = FLOAT64,
    xp: Any = np,
) -> tuple[Any, Moments]:
    """What the learning rate is multiplied with, and the new moments.

    Args:
        g: gradient, with weight decay where that is part of it.
        moments: before this gradient; those that `moment_names` lists, 0 at the start.
        t: the number of this step, 1 at the first; a number or a 0-dim array.
        settings: of the filter.
        denominator: what the estimate is divided by; None: nothing.
        corrections: of this step, if not those of `settings`.
        largest_update: what a divided estimate is clipped to, for moments in 8 bits.
        numbers: the range of the dtype of g.
        xp: the library of g: numpy (also for floats), torch or jax.numpy.

    Examples:
        >>> start = Moments(0.0, 0.0, 0.0)
        >>> update, moments = direction(4.0, start, 1, FilterSettings(), Denominator())
        >>> round(float(update), 6)  # Adam's first step has length 1 times lr
        1.0
    """
    beta1, beta2 = settings.betas
    xp_of_t = math if isinstance(t, (int, float)) else xp
    largest = largest_gradient(beta2, numbers)
    g = without_overflow(g, moments.m, largest, divides=denominator is not None, xp=xp)
    m, s = update_moments(g, moments.m, moments.s, beta1, beta2)
    update = estimate(
        g,
        m,
        s,
        settings.corrections(t, xp_of_t) if corrections is None else corrections,
        eps=at_least(settings.eps, numbers.smallest, xp),
        gain_scale=settings.gain_scale,
        gain_power=settings.gain_power,
    )
    v = moments.v
    if denominator is not None:
        if v is not None:
            v = averaged_square(v, g, beta2)
            v_hat = v / one_minus_power(beta2, t, xp_of_t)
        else:
            kind = denominator.second_moment
            v_hat = second_moment(m, s, second_moment_weights(t, beta1, beta2, kind, xp_of_t))
        update = update / (xp.sqrt(v_hat) + denominator.eps)
        if largest_update is not None:
            update = xp.clip(update, -largest_update, largest_update)
    return update, Moments(m, s, v)


def at_least(eps: Any, smallest: float, xp: Any) -> Any:
    """eps, or the smallest normal number: with 0, a gradient that is always 0 would give 0/0."""
    return max(eps, smallest) if isinstance(eps, (int, float)) else xp.maximum(eps, smallest)


class Filter:
    """The update with its moments, one gradient at a time: for simulations, instruments, tests.

    Args:
        settings: of the filter.
        denominator: what the estimate is divided by, as in FilterAdam; None: nothing, as in SGDF.
        numbers: the range of the dtype of the gradients.
        xp: the library of the gradients: numpy (also for floats), torch or jax.numpy.

    Examples:
        >>> f = Filter(FilterSettings(gain_scale=1.0))
        >>> [round(float(f(g)), 3) for g in (4.0, 5.0, 3.0)]
        [4.0, 4.786, 3.741]
        >>> round(float(f.gain), 3), f.t
        (0.23, 3)
    """

    def __init__(
        self,
        settings: FilterSettings | None = None,
        denominator: Denominator | None = None,
        *,
        numbers: NumberRange = FLOAT64,
        xp: Any = np,
    ) -> None:
        self.settings = FilterSettings() if settings is None else settings
        self.denominator, self.numbers, self.xp = denominator, numbers, xp
        kept = moment_names(self.settings, denominator)
        names = ("exp_avg", "exp_var", "exp_avg_sq")
        self.moments = Moments(*(0.0 if name in kept else None for name in names))
        self.g: Any = 0.0  #: the last gradient
        self.t = 0  #: how many gradients it has seen

    def __call__(self, g: Any) -> Any:
        """The direction of a step: the estimate g^, divided if there is a denominator."""
        self.t += 1
        self.g = g
        update, self.moments = direction(
            g,
            self.moments,
            self.t,
            self.settings,
            self.denominator,
            corrections=self.corrections,
            numbers=self.numbers,
            xp=self.xp,
        )
        return update

    @property
    def corrections(self) -> Corrections:
        """The bias corrections of the last step; a subclass may change them."""
        return self.settings.corrections(self.t)

    @property
    def m_hat(self) -> Any:
        return self.moments.m / self.corrections.trend

    @property
    def s_hat(self) -> Any:
        return self.moments.s * self.corrections.fluctuation

    @property
    def gain(self) -> Any:
        """K of the last gradient."""
        eps = at_least(self.settings.eps, self.numbers.smallest, self.xp)
        return wiener_gain(self.s_hat, self.g - self.m_hat, eps)

    def estimate(self, **changes: Any) -> Any:
        """g^ of the last gradient from the same moments, with other settings of the gain."""
        settings = self.settings._replace(**changes)
        return estimate(
            self.g,
            self.moments.m,
            self.moments.s,
            self.corrections,
            eps=at_least(settings.eps, self.numbers.smallest, self.xp),
            gain_scale=settings.gain_scale,
            gain_power=settings.gain_power,
        )

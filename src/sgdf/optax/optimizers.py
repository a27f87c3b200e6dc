"""The optimizers of `sgdf.optax`: SGDF, FilterAdam and FilterAdamW, and the filter by itself."""

import math
from collections.abc import Callable
from typing import Any

import jax
import optax

from sgdf.filter import (
    DEFAULT_FORM,
    SECOND_MOMENTS,
    Denominator,
    FilterSettings,
    default_gain_eps,
)
from sgdf.optax.transformation import descend, filter_transformation, require


def scale_by_wiener_filter(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    gain_scale: float = 2.0,
    gain_power: float = 1.0,
    gain_eps: float | None = None,
    correction: bool = True,
    bias_correction: bool = True,
) -> optax.GradientTransformation:
    """Replace each gradient by its Wiener-filtered estimate.

    The filter follows the trend m of each coordinate of the gradient and the fluctuation s about
    it, and moves the trend towards the gradient by the gain K:

    ```text
    m  <- b1 m + (1-b1) g
    s  <- b2 s + (1-b2) (g - m)^2
    m^  = m / (1 - b1^t)
    s^  = s (1-b1)(1-b1^2t) / ((1+b1)(1-b2^t))
    K   = s^ / (s^ + (g - m^)^2 + eps)
    g^  = m^ + gain_scale K^gain_power (g - m^)
    ```

    The state is in float32 if the parameters are in bfloat16 or float16; updates have the dtype of
    the gradients.

    Args:
        b1: decay of the trend.
        b2: decay of the fluctuation.
        eps: added to the denominator of K, so compared with *squared* gradients. 0 stands for the
            smallest normal number; then K does not depend on the magnitude of the gradients.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (a bias-corrected moving average).
        gain_power: exponent of the gain; 1 is the paper's. 0 makes the gain the constant
            ``gain_scale``, and the state has no s: ``1 - b1`` is Nesterov's momentum. Under
            ``optax.inject_hyperparams``, name it in ``static_args`` to save the memory of s.
        gain_eps: overrides eps in the gain, as in `filter_adam`. Default: eps.
        correction: whether s^ has the factor ``(1-b1)(1-b1^2t) / (1+b1)``, which makes it the
            variance of the average instead of the gradient.
        bias_correction: whether m^ is ``m / (1 - b1^t)``, or m itself, as in SGD with
            momentum.

    Returns:
        An ``optax.GradientTransformation``. Its updates point along the gradient: follow it with
        ``optax.scale_by_learning_rate``, which changes the sign, or with an optimizer.

    Examples:
        Clip the gradient, filter it, and descend.

        >>> import jax, jax.numpy as jnp, optax
        >>> from sgdf.optax import scale_by_wiener_filter
        >>> optimizer = optax.chain(
        ...     optax.clip_by_global_norm(1.0),
        ...     scale_by_wiener_filter(),
        ...     optax.scale_by_learning_rate(0.1),
        ... )
        >>> params = jnp.array([1.0, -2.0])
        >>> state = optimizer.init(params)
        >>> for _ in range(5):
        ...     grads = jax.grad(lambda p: jnp.sum(p**2))(params)
        ...     updates, state = optimizer.update(grads, state, params)
        ...     params = optax.apply_updates(params, updates)
        ...     print(f"{jnp.sum(params**2):.2f}")
        4.56
        4.15
        3.75
        3.37
        3.01

        In front of another optimizer, with a constant gain:

        >>> constant = scale_by_wiener_filter(gain_scale=0.1, gain_power=0)
        >>> optimizer = optax.chain(constant, optax.adamw(0.1))
        >>> state = optimizer.init(params)
        >>> state[0].exp_var is None
        True

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter", Algorithm 1.
    """
    return filter_transformation(
        _settings(b1, b2, eps, gain_eps, gain_scale, gain_power, correction, bias_correction)
    )


def sgdf(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    gain_scale: float = 2.0,
    gain_power: float = 1.0,
    gain_eps: float | None = None,
    correction: bool = True,
    bias_correction: bool = True,
    decoupled_weight_decay: bool = False,
    mask: Any | Callable[[optax.Params], Any] | None = None,
) -> optax.GradientTransformation:
    """SGDF: gradient descent along the Wiener-filtered gradient.

    ```text
    p <- p - lr g^
    ```

    where g^ is the output of `scale_by_wiener_filter`. The result is that of
    `sgdf.SGDF` in PyTorch.

    Args:
        learning_rate: a number or an optax schedule. Coming from ``optax.sgd(lr, momentum)``, start
            from ``lr / (1 - momentum)``: the filter averages gradients, momentum sums them.
        b1: decay of the trend.
        b2: decay of the fluctuation.
        eps: added to the denominator of the gain, so compared with *squared* gradients. If
            gradients are far below ``sqrt(eps)``, the gain is 0: lower eps then.
        weight_decay: L2 penalty; part of the gradient, so it is filtered with it.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter.
        gain_power: exponent of the gain; 1 is the paper's. 0 makes the gain the constant
            ``gain_scale``, and the state has no s: with ``gain_scale=1 - b1`` and
            ``bias_correction=False`` this is Nesterov's momentum, ``optax.sgd(learning_rate *
            (1 - b1), b1, nesterov=True)``.
        gain_eps: overrides eps in the gain, as in `filter_adam`. Default: eps.
        correction: see `scale_by_wiener_filter`.
        bias_correction: whether m is divided by ``1 - b1^t``; without it the first
            steps are short, as those of SGD with momentum are.
        decoupled_weight_decay: apply weight decay to the parameters instead of the gradient.
        mask: a tree of booleans, or a function from the parameters to one: those with weight decay
            (default: all).

    Returns:
        An ``optax.GradientTransformation``.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from sgdf.optax import sgdf
        >>> params = {"w": jnp.ones(3)}
        >>> optimizer = sgdf(optax.cosine_decay_schedule(0.1, 100), weight_decay=5e-4)
        >>> state = optimizer.init(params)
        >>> for _ in range(5):
        ...     grads = jax.grad(lambda p: jnp.sum(p["w"] ** 2))(params)
        ...     updates, state = optimizer.update(grads, state, params)
        ...     params = optax.apply_updates(params, updates)
        ...     print(f"{jnp.sum(params['w'] ** 2):.2f}")
        1.92
        1.24
        0.75
        0.42
        0.21

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter", Algorithm 1.
    """
    filtered = scale_by_wiener_filter(
        b1,
        b2,
        eps,
        gain_scale=gain_scale,
        gain_power=gain_power,
        gain_eps=gain_eps,
        correction=correction,
        bias_correction=bias_correction,
    )
    return descend(filtered, learning_rate, weight_decay, decoupled_weight_decay, mask)


def filter_adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    gain_scale: float = 2.0,
    gain_power: float = 1.0,
    gain_eps: float | None = None,
    correction: bool = True,
    bias_correction: bool = True,
    second_moment: str = "separate",
    decoupled_weight_decay: bool = False,
    mask: Any | Callable[[optax.Params], Any] | None = None,
) -> optax.GradientTransformation:
    """Adam whose first moment is the Wiener-filtered gradient.

    ```text
    p <- p - lr g^ / (sqrt(v^) + eps)
    ```

    where g^ is the output of `scale_by_wiener_filter`, and v^ depends on ``second_moment``:

    ```text
    separate:     v^ = v / (1 - b2^t),   v <- b2 v + (1-b2) g^2
    derived:      v^ = a m^2 + b s,      a -> 1,  b -> 1 / b1
    fluctuation:  v^ = s / (1 - b2^t)
    ```

    a and b (`sgdf.filter.second_moment_weights`) depend on the step and are such that v^ has the
    mean of the squared gradient at every step, for gradients with a fixed mean and independent
    noise. The result is that of `sgdf.FilterAdam` in PyTorch.

    Args:
        learning_rate: a number or an optax schedule.
        b1: decay of the trend.
        b2: decay of the fluctuation and of the second moment.
        eps: added to the denominator of Adam's step.
        weight_decay: L2 penalty; part of the gradient, so it is filtered and scaled with it.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (Adam itself).
        gain_power: exponent of the gain; 1 is the paper's. 0 makes the gain the constant
            ``gain_scale``, which needs no s; ``1 - b1`` is Nesterov's momentum.
        gain_eps: added to the denominator of the gain, so compared with *squared* gradients. None:
            eps with the separate second moment, as in the paper, else 0. With 0 the gain does not
            depend on the magnitude of the gradients; with 1e-8 it goes to 0 if they are far below
            1e-4.
        correction: see `scale_by_wiener_filter`.
        bias_correction: whether m is divided by ``1 - b1^t``.
        second_moment: where v^ comes from. "separate": Adam's own moving average of squared
            gradients, as in the paper. "derived": from m and s, with the same mean, so that
            nothing else is kept. "fluctuation": s itself, as in AdaBelief.
        decoupled_weight_decay: apply weight decay to the parameters instead of the gradient.
        mask: a tree of booleans, or a function from the parameters to one: those with weight decay
            (default: all).

    Returns:
        An ``optax.GradientTransformation``.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from sgdf.optax import filter_adam
        >>> params = jnp.array([1.0, -2.0])
        >>> optimizer = filter_adam(0.1)
        >>> state = optimizer.init(params)
        >>> for _ in range(5):
        ...     grads = jax.grad(lambda p: jnp.sum(p**2))(params)
        ...     updates, state = optimizer.update(grads, state, params)
        ...     params = optax.apply_updates(params, updates)
        ...     print(f"{jnp.sum(params**2):.2f}")
        4.42
        3.91
        3.46
        3.05
        2.68

        As much state as Adam has, and no v:

        >>> state = filter_adam(0.1, second_moment="derived").init(params)
        >>> state[0].exp_avg_sq is None
        True

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter",
            section "Wiener Filter combines Adam".
        Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015.
        Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
            Gradients", 2020.
    """
    settings = _settings(
        b1, b2, eps, gain_eps, gain_scale, gain_power, correction, bias_correction, second_moment
    )
    direction = filter_transformation(settings, Denominator(second_moment, eps))
    return descend(direction, learning_rate, weight_decay, decoupled_weight_decay, mask)


def filter_adamw(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    gain_scale: float = DEFAULT_FORM.gain_scale,
    gain_power: float = 1.0,
    gain_eps: float | None = DEFAULT_FORM.gain_eps,
    correction: bool = True,
    bias_correction: bool = True,
    second_moment: str = DEFAULT_FORM.second_moment,
    mask: Any | Callable[[optax.Params], Any] | None = None,
) -> optax.GradientTransformation:
    """AdamW whose first moment is the Wiener-filtered gradient.

    ```text
    p <- p - lr (g^ / (sqrt(v^) + eps) + weight_decay p)
    ```

    with g^ and v^ as in `filter_adam`. The result is that of `sgdf.FilterAdamW` in PyTorch.

    Args:
        learning_rate: a number or an optax schedule.
        b1: decay of the trend.
        b2: decay of the fluctuation and of the second moment.
        eps: added to the denominator of Adam's step.
        weight_decay: how much of the parameter a step removes, in units of the learning rate. The
            default is PyTorch's; that of ``optax.adamw`` is 1e-4.
        gain_scale: see `filter_adam`; 0 is AdamW itself.
        gain_power: see `filter_adam`.
        gain_eps: added to the denominator of the gain, beside *squared* gradients. With 0 the
            filter does not depend on the magnitude of the gradients. None: see `filter_adam`.
        correction: see `scale_by_wiener_filter`.
        bias_correction: see `filter_adam`.
        second_moment: "separate", "derived" or "fluctuation"; see `filter_adam`.
        mask: a tree of booleans, or a function from the parameters to one: those with weight decay
            (default: all).

    Returns:
        An ``optax.GradientTransformation``.

    Examples:
        Weight decay only for matrices.

        >>> import jax, jax.numpy as jnp, optax
        >>> from sgdf.optax import filter_adamw
        >>> def matrices(params):
        ...     return jax.tree.map(lambda p: p.ndim > 1, params)
        >>> params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
        >>> optimizer = filter_adamw(0.1, weight_decay=0.5, mask=matrices)
        >>> state = optimizer.init(params)
        >>> for _ in range(3):
        ...     grads = jax.grad(lambda p: jnp.sum(p["w"] ** 2) + jnp.sum(p["b"] ** 2))(params)
        ...     updates, state = optimizer.update(grads, state, params)
        ...     params = optax.apply_updates(params, updates)
        ...     print(f"{params['w'][0, 0]:.2f} {params['b'][0]:.2f}")
        0.85 0.90
        0.72 0.81
        0.60 0.72

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter",
            section "Wiener Filter combines Adam".
        Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
    """
    return filter_adam(
        learning_rate,
        b1,
        b2,
        eps,
        weight_decay,
        gain_scale=gain_scale,
        gain_power=gain_power,
        gain_eps=gain_eps,
        correction=correction,
        bias_correction=bias_correction,
        second_moment=second_moment,
        decoupled_weight_decay=True,
        mask=mask,
    )


def _settings(
    b1: Any,
    b2: Any,
    eps: Any,
    gain_eps: Any,
    gain_scale: Any,
    gain_power: Any,
    correction: bool,
    bias_correction: bool,
    second_moment: str = "separate",
) -> FilterSettings:
    """The filter's settings, validated as far as they are numbers while JAX traces.

    Under `optax.inject_hyperparams` they are at `init`.
    """
    for name, beta in (("b1", b1), ("b2", b2)):
        require(beta, name, lambda x: 0 <= x < 1)
    numbers = {"eps": eps, "gain_scale": gain_scale, "gain_power": gain_power}
    for name, number in (
        numbers.items() if gain_eps is None else [*numbers.items(), ("gain_eps", gain_eps)]
    ):
        require(number, name, lambda x: 0 <= x < math.inf)
    if second_moment not in SECOND_MOMENTS:
        names = ", ".join(map(repr, SECOND_MOMENTS))
        raise ValueError(f"Invalid second_moment value (not one of {names}): {second_moment!r}")
    # Then m is g and s is 0: nothing is left to derive a second moment from.
    if second_moment != "separate" and not isinstance(b1, jax.core.Tracer) and float(b1) == 0:
        raise ValueError(f"second_moment={second_moment!r} needs a b1 above 0")
    gain_eps = default_gain_eps(eps, second_moment) if gain_eps is None else gain_eps
    return FilterSettings((b1, b2), gain_eps, gain_scale, gain_power, correction, bias_correction)

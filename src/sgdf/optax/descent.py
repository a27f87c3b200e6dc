"""The filter alone, and SGDF: gradient descent along the filtered gradient."""

from collections.abc import Callable
from typing import Any

import optax

from sgdf.filter import FilterSettings
from sgdf.optax.transformation import descend, filter_transformation


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
    r"""Replace each gradient by its Wiener-filtered estimate.

    The filter follows the trend :math:`m` of each coordinate of the gradient and the fluctuation
    :math:`s` about it, and moves the trend towards the gradient by the gain :math:`K`:

    .. math::
        \begin{align*}
        m_t &= \beta_1 m_{t-1} + (1-\beta_1) g_t \\
        s_t &= \beta_2 s_{t-1} + (1-\beta_2) (g_t - m_t)^2 \\
        \hat m_t &= m_t / (1-\beta_1^t) \\
        \hat s_t &= s_t \, \frac{(1-\beta_1)(1-\beta_1^{2t})}{(1+\beta_1)(1-\beta_2^t)} \\
        K_t &= \frac{\hat s_t}{\hat s_t + (g_t - \hat m_t)^2 + \epsilon} \\
        \hat g_t &= \hat m_t + c \, K_t^p \, (g_t - \hat m_t)
        \end{align*}

    with :math:`c` = ``gain_scale`` and :math:`p` = ``gain_power``. The state is in float32 if the
    parameters are in bfloat16 or float16; updates have the dtype of the gradients.

    Args:
        b1: decay of the trend.
        b2: decay of the fluctuation.
        eps: added to the denominator of K, so compared with *squared* gradients. 0 stands for the
            smallest normal number; then K does not depend on the magnitude of the gradients.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (a bias-corrected moving average).
        gain_power: exponent of the gain; 1 is the paper's. 0 makes the gain the constant
            ``gain_scale``, and the state has no :math:`s`: ``1 - b1`` is Nesterov's momentum. Under
            ``optax.inject_hyperparams``, name it in ``static_args`` to save the memory of
            :math:`s`.
        gain_eps: eps by another name, as in :func:`sgdf.optax.filter_adam`. None: eps.
        correction: whether :math:`\hat s` has the factor :math:`(1-\beta_1)(1-\beta_1^{2t}) /
            (1+\beta_1)`, which makes it the variance of the average instead of the gradient.
        bias_correction: whether :math:`\hat m` is :math:`m / (1-\beta_1^t)`, or :math:`m` itself,
            as in SGD with momentum.

    Returns:
        An ``optax.GradientTransformation``. Its updates point along the gradient: follow it with
        ``optax.scale_by_learning_rate``, which changes the sign, or with an optimizer.

    Example:
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
    settings = FilterSettings.of(
        {
            "betas": (b1, b2),
            "eps": eps,
            "gain_scale": gain_scale,
            "gain_power": gain_power,
            "gain_eps": gain_eps,
            "correction": correction,
            "bias_correction": bias_correction,
        }
    )
    return filter_transformation(settings)


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
    r"""SGDF: gradient descent along the Wiener-filtered gradient.

    .. math::
        \theta_t = \theta_{t-1} - \alpha_t \hat g_t

    where :math:`\hat g_t` is the output of :func:`scale_by_wiener_filter`. The result is that of
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
            ``gain_scale``, and the state has no :math:`s`: with ``gain_scale=1 - b1`` and
            ``bias_correction=False`` this is Nesterov's momentum, ``optax.sgd(learning_rate *
            (1 - b1), b1, nesterov=True)``.
        gain_eps: eps by another name, as in :func:`sgdf.optax.filter_adam`. None: eps.
        correction: see :func:`scale_by_wiener_filter`.
        bias_correction: whether :math:`m` is divided by :math:`1-\beta_1^t`; without it the first
            steps are short, as those of SGD with momentum are.
        decoupled_weight_decay: apply weight decay to the parameters instead of the gradient.
        mask: a tree of booleans, or a function from the parameters to one: those with weight decay
            (default: all).

    Returns:
        An ``optax.GradientTransformation``.

    Example:
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

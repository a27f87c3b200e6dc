"""Adam and AdamW whose first moment is the filtered gradient."""

from collections.abc import Callable
from typing import Any

import optax

from sgdf.filter import SECOND_MOMENTS, Denominator, FilterSettings
from sgdf.optax.transformation import descend, filter_transformation


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
    r"""Adam whose first moment is the Wiener-filtered gradient.

    .. math::
        \theta_t = \theta_{t-1} - \alpha_t \, \hat g_t \big/ \left(\sqrt{\hat v_t} + \epsilon\right)

    where :math:`\hat g_t` is the output of :func:`sgdf.optax.scale_by_wiener_filter`, and
    :math:`\hat v_t` depends on ``second_moment``:

    .. math::
        \begin{align*}
        \text{separate:} \quad & \hat v_t = v_t / (1-\beta_2^t), \quad
        v_t = \beta_2 v_{t-1} + (1-\beta_2) g_t^2 \\
        \text{derived:} \quad & \hat v_t = a_t m_t^2 + b_t s_t, \quad
        a_t \to 1, \quad b_t \to 1 / \beta_1 \\
        \text{fluctuation:} \quad & \hat v_t = s_t / (1-\beta_2^t)
        \end{align*}

    :math:`a_t` and :math:`b_t` (`sgdf.filter.second_moment_weights`) are such that
    :math:`\hat v_t` has the mean of :math:`g^2` at every step, for gradients with a fixed mean and
    independent noise. The result is that of `sgdf.FilterAdam` in PyTorch.

    Args:
        learning_rate: a number or an optax schedule.
        b1: decay of the trend.
        b2: decay of the fluctuation and of the second moment.
        eps: added to the denominator of Adam's step.
        weight_decay: L2 penalty; part of the gradient, so it is filtered and scaled with it.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (Adam itself).
        gain_power: exponent of the gain; 1 is the paper's. 0 makes the gain the constant
            ``gain_scale``, which needs no :math:`s`; ``1 - b1`` is Nesterov's momentum.
        gain_eps: added to the denominator of the gain, so compared with *squared* gradients. None:
            eps with the separate second moment, as in the paper, else 0. With 0 the gain does not
            depend on the magnitude of the gradients; 1e-8 closes it where they are far below 1e-4.
        correction: see :func:`sgdf.optax.scale_by_wiener_filter`.
        bias_correction: whether :math:`m` is divided by :math:`1-\beta_1^t`.
        second_moment: where :math:`\hat v` comes from. "separate": Adam's own moving average of
            squared gradients, as in the paper. "derived": from :math:`m` and :math:`s`, with the
            same mean, so that nothing else is kept. "fluctuation": :math:`s` itself, as in
            AdaBelief.
        decoupled_weight_decay: apply weight decay to the parameters instead of the gradient.
        mask: a tree of booleans, or a function from the parameters to one: those with weight decay
            (default: all).

    Returns:
        An ``optax.GradientTransformation``.

    Example:
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

        As much state as Adam has, and no :math:`v`:

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
    _check_second_moment(second_moment, b1)
    settings = FilterSettings.of(
        {
            "betas": (b1, b2),
            "eps": eps,
            "gain_scale": gain_scale,
            "gain_power": gain_power,
            "gain_eps": gain_eps,
            "correction": correction,
            "bias_correction": bias_correction,
            "second_moment": second_moment,
        }
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
    gain_scale: float = 2.0,
    gain_power: float = 1.0,
    gain_eps: float | None = None,
    correction: bool = True,
    bias_correction: bool = True,
    second_moment: str = "separate",
    mask: Any | Callable[[optax.Params], Any] | None = None,
) -> optax.GradientTransformation:
    r"""AdamW whose first moment is the Wiener-filtered gradient.

    .. math::
        \theta_t = \theta_{t-1} - \alpha_t \left(\frac{\hat g_t}{\sqrt{\hat v_t} + \epsilon}
        + \lambda \theta_{t-1}\right)

    with :math:`\hat g_t` and :math:`\hat v_t` as in :func:`filter_adam` and :math:`\lambda` =
    ``weight_decay``. The result is that of `sgdf.FilterAdamW` in PyTorch.

    Args:
        learning_rate: a number or an optax schedule.
        b1: decay of the trend.
        b2: decay of the fluctuation and of the second moment.
        eps: added to the denominator of Adam's step.
        weight_decay: how much of the parameter a step removes, in units of the learning rate. The
            default is PyTorch's; that of ``optax.adamw`` is 1e-4.
        gain_scale: see :func:`filter_adam`; 0 is AdamW itself.
        gain_power: see :func:`filter_adam`.
        gain_eps: see :func:`filter_adam`.
        correction: see :func:`sgdf.optax.scale_by_wiener_filter`.
        bias_correction: see :func:`filter_adam`.
        second_moment: "separate", "derived" or "fluctuation"; see :func:`filter_adam`.
        mask: a tree of booleans, or a function from the parameters to one: those with weight decay
            (default: all).

    Returns:
        An ``optax.GradientTransformation``.

    Example:
        Weight decay for matrices alone.

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


def _check_second_moment(kind: str, b1: Any) -> None:
    if kind not in SECOND_MOMENTS:
        names = ", ".join(map(repr, SECOND_MOMENTS))
        raise ValueError(f"Invalid second_moment value (not one of {names}): {kind!r}")
    # Then m is g and s is 0: nothing is left to derive a second moment from.
    if kind != "separate" and isinstance(b1, (int, float)) and b1 == 0:
        raise ValueError(f"second_moment={kind!r} needs a b1 above 0")

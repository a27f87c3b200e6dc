"""The filter as an optax gradient transformation: the JAX twin of `sgdf.SGDF`.

Needs JAX and optax (``pip install "sgdf[jax]"``). `sgdf` and `filter_adam` are complete optimizers,
`scale_by_wiener_filter` is the filter alone, for an `optax.chain`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sgdf.filter import FilterSettings, one_minus_power, wiener_filter

__all__ = ["filter_adam", "scale_by_wiener_filter", "sgdf"]


class WienerFilterState(NamedTuple):
    """State of the filter: the number of steps, the trend m, the fluctuation s."""

    count: Any
    exp_avg: optax.Updates
    exp_var: optax.Updates


class FilterAdamState(NamedTuple):
    """State of the filter, and Adam's second moment v."""

    count: Any
    exp_avg: optax.Updates
    exp_var: optax.Updates
    exp_avg_sq: optax.Updates


def scale_by_wiener_filter(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    gain_scale: float = 2.0,
    gain_power: float = 1.0,
    correction: bool = True,
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
        eps: added to the denominator of K, so compared with *squared* gradients.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (a bias-corrected moving average).
        gain_power: exponent of the gain; 1 is the paper's.
        correction: whether :math:`\hat s` has the factor :math:`(1-\beta_1)(1-\beta_1^{2t}) /
            (1+\beta_1)`, which makes it the variance of the average instead of the gradient.

    Returns:
        An ``optax.GradientTransformation``. Its updates point along the gradient: follow it with
        ``optax.scale_by_learning_rate``, which changes the sign.

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

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter", Algorithm 1.
    """

    settings = FilterSettings((b1, b2), eps, gain_scale, gain_power, correction)

    def init(params: optax.Params) -> WienerFilterState:
        return WienerFilterState(jnp.zeros([], jnp.int32), _zeros_like(params), _zeros_like(params))

    def update(
        updates: optax.Updates, state: WienerFilterState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, WienerFilterState]:
        del params
        updates = jax.tree.map(jnp.asarray, updates)  # accept numbers and NumPy arrays
        count = optax.safe_increment(state.count)
        g_hat, exp_avg, exp_var = _filter_tree(updates, state, count, settings)
        g_hat = jax.tree.map(lambda u, g: u.astype(g.dtype), g_hat, updates)
        return g_hat, WienerFilterState(count, exp_avg, exp_var)

    return optax.GradientTransformation(init, update)


def sgdf(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    gain_scale: float = 2.0,
    gain_power: float = 1.0,
    correction: bool = True,
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
        gain_power: exponent of the gain; 1 is the paper's.
        correction: see :func:`scale_by_wiener_filter`.
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
        b1, b2, eps, gain_scale=gain_scale, gain_power=gain_power, correction=correction
    )
    return _chain(filtered, learning_rate, weight_decay, decoupled_weight_decay, mask)


def filter_adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    gain_scale: float = 2.0,
    gain_power: float = 1.0,
    correction: bool = True,
    decoupled_weight_decay: bool = False,
    mask: Any | Callable[[optax.Params], Any] | None = None,
) -> optax.GradientTransformation:
    r"""Adam whose first moment is the Wiener-filtered gradient.

    .. math::
        \begin{align*}
        v_t &= \beta_2 v_{t-1} + (1-\beta_2) g_t^2 \\
        \theta_t &= \theta_{t-1} - \alpha_t \, \hat g_t \big/
        \left(\sqrt{v_t / (1-\beta_2^t)} + \epsilon\right)
        \end{align*}

    where :math:`\hat g_t` is the output of :func:`scale_by_wiener_filter`. The result is that of
    `sgdf.FilterAdam` in PyTorch, or of `sgdf.FilterAdamW` with ``decoupled_weight_decay=True``.

    Args:
        learning_rate: a number or an optax schedule.
        b1: decay of the trend.
        b2: decay of the fluctuation and of the second moment.
        eps: added to the denominator of the gain and to that of Adam's step.
        weight_decay: L2 penalty; part of the gradient, so it is filtered and scaled with it.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter.
        gain_power: exponent of the gain; 1 is the paper's.
        correction: see :func:`scale_by_wiener_filter`.
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

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter",
            section "Wiener Filter combines Adam".
        Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015.
    """

    settings = FilterSettings((b1, b2), eps, gain_scale, gain_power, correction)

    def init(params: optax.Params) -> FilterAdamState:
        zeros = [_zeros_like(params) for _ in range(3)]
        return FilterAdamState(jnp.zeros([], jnp.int32), *zeros)

    def update(
        updates: optax.Updates, state: FilterAdamState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, FilterAdamState]:
        del params
        updates = jax.tree.map(jnp.asarray, updates)  # accept numbers and NumPy arrays
        count = optax.safe_increment(state.count)
        g_hat, exp_avg, exp_var = _filter_tree(updates, state, count, settings)

        def second_moment(g: Any, v: Any) -> Any:
            g = g.astype(v.dtype)
            return b2 * v + (1 - b2) * g * g

        def precondition(u: Any, v: Any, g: Any) -> Any:
            v_hat = v / one_minus_power(b2, count.astype(v.dtype), jnp)
            return (u / (jnp.sqrt(v_hat) + eps)).astype(g.dtype)

        exp_avg_sq = jax.tree.map(second_moment, updates, state.exp_avg_sq)
        scaled = jax.tree.map(precondition, g_hat, exp_avg_sq, updates)
        return scaled, FilterAdamState(count, exp_avg, exp_var, exp_avg_sq)

    adam = optax.GradientTransformation(init, update)
    return _chain(adam, learning_rate, weight_decay, decoupled_weight_decay, mask)


def _chain(
    scale: optax.GradientTransformation,
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: float,
    decoupled: bool,
    mask: Any,
) -> optax.GradientTransformation:
    descend = optax.scale_by_learning_rate(learning_rate)
    if isinstance(weight_decay, (int, float)) and weight_decay == 0:
        return optax.chain(scale, descend)  # without decay, update needs no parameters
    decay = optax.add_decayed_weights(weight_decay, mask)
    return optax.chain(scale, decay, descend) if decoupled else optax.chain(decay, scale, descend)


def _zeros_like(params: optax.Params) -> optax.Updates:
    def zeros(p: Any) -> Any:
        p = jnp.asarray(p)
        if jnp.iscomplexobj(p):
            raise TypeError(
                "the filter is real: wrap it in optax.contrib.split_real_and_imaginary for "
                f"parameters of dtype {p.dtype}"
            )
        return jnp.zeros_like(p, dtype=jnp.promote_types(p.dtype, jnp.float32))

    return jax.tree.map(zeros, params)


def _filter_tree(
    updates: optax.Updates, state: Any, count: Any, settings: FilterSettings
) -> tuple[optax.Updates, optax.Updates, optax.Updates]:
    """(g^, m, s) of every leaf, g^ in the dtype of the state."""

    def one(g: Any, m: Any, s: Any) -> tuple[Any, Any, Any]:
        return wiener_filter(
            g.astype(m.dtype),
            m,
            s,
            settings.corrections(count.astype(m.dtype), jnp),
            beta1=settings.betas[0],
            beta2=settings.betas[1],
            eps=jnp.maximum(settings.eps, jnp.finfo(m.dtype).tiny),
            gain_scale=settings.gain_scale,
            gain_power=settings.gain_power,
        )

    triples = jax.tree.map(one, updates, state.exp_avg, state.exp_var)
    if not jax.tree.leaves(updates):  # jax.tree.transpose rejects an empty tree
        return updates, state.exp_avg, state.exp_var
    outer, inner = jax.tree.structure(updates), jax.tree.structure((0, 0, 0))
    g_hat, exp_avg, exp_var = jax.tree.transpose(outer, inner, triples)
    return g_hat, exp_avg, exp_var

"""The filter as an optax gradient transformation: the JAX twin of `sgdf.SGDF`.

Needs JAX and optax (``pip install "sgdf[jax]"``).

>>> import jax, jax.numpy as jnp, optax
>>> from sgdf.optax import sgdf
>>> params = {"w": jnp.ones(3)}
>>> optimizer = sgdf(optax.cosine_decay_schedule(0.5, 100), weight_decay=5e-4)
>>> state = optimizer.init(params)
>>> grads = jax.grad(lambda p: jnp.sum(p["w"] ** 2))(params)
>>> updates, state = optimizer.update(grads, state, params)
>>> params = optax.apply_updates(params, updates)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sgdf.filter import FilterSettings, one_minus_power, wiener_filter

__all__ = ["filter_adam", "scale_by_wiener_filter", "sgdf"]


class WienerFilterState(NamedTuple):
    """State of the filter: number of steps taken, trend, fluctuation."""

    count: Any
    exp_avg: optax.Updates
    exp_var: optax.Updates


class FilterAdamState(NamedTuple):
    """State of the filter, and Adam's second moment."""

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
    """Replace every gradient by its Wiener-filtered estimate g^ (see `sgdf.filter`).

    State is float32 for parameters below it (bfloat16, float16); updates have the gradients'
    dtype.

    >>> import jax.numpy as jnp, optax
    >>> clipped = optax.chain(optax.clip_by_global_norm(1.0), scale_by_wiener_filter())
    """

    settings = FilterSettings((b1, b2), eps, gain_scale, gain_power, correction)

    def init(params: optax.Params) -> WienerFilterState:
        return WienerFilterState(jnp.zeros([], jnp.int32), _zeros_like(params), _zeros_like(params))

    def update(
        updates: optax.Updates, state: WienerFilterState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, WienerFilterState]:
        del params
        updates = jax.tree.map(jnp.asarray, updates)  # a number or a NumPy array is a gradient too
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
    """SGDF. Settings as in `sgdf.SGDF`; `mask` says which parameters weight decay touches."""
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
    """Adam whose first moment is the filtered gradient. Settings as in `sgdf.FilterAdam`."""

    settings = FilterSettings((b1, b2), eps, gain_scale, gain_power, correction)

    def init(params: optax.Params) -> FilterAdamState:
        zeros = [_zeros_like(params) for _ in range(3)]
        return FilterAdamState(jnp.zeros([], jnp.int32), *zeros)

    def update(
        updates: optax.Updates, state: FilterAdamState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, FilterAdamState]:
        del params
        updates = jax.tree.map(jnp.asarray, updates)  # a number or a NumPy array is a gradient too
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
        return optax.chain(scale, descend)  # which does not ask for the parameters
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
    """(g^, m, s) of a whole tree, g^ in the dtype of the state."""

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
    if not jax.tree.leaves(updates):  # which jax.tree.transpose refuses
        return updates, state.exp_avg, state.exp_var
    outer, inner = jax.tree.structure(updates), jax.tree.structure((0, 0, 0))
    g_hat, exp_avg, exp_var = jax.tree.transpose(outer, inner, triples)
    return g_hat, exp_avg, exp_var

"""One step of the filter over a tree of gradients, by the formulas of `sgdf.filter`."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sgdf.filter import (
    FLOAT32,
    FLOAT64,
    Denominator,
    FilterSettings,
    Moments,
    direction,
    moment_names,
)


class WienerFilterState(NamedTuple):
    """State of the filter: the number of steps, the trend m, the fluctuation s.

    A constant gain needs no s: `exp_var` is None then.
    """

    count: Any
    exp_avg: optax.Updates
    exp_var: optax.Updates


class FilterAdamState(NamedTuple):
    """State of the filter, and Adam's second moment v; None for a moment that is not needed."""

    count: Any
    exp_avg: optax.Updates
    exp_var: optax.Updates
    exp_avg_sq: optax.Updates


def filter_transformation(
    settings: FilterSettings, denominator: Denominator | None = None
) -> optax.GradientTransformation:
    """Replace gradients by their estimates; with a denominator, by FilterAdam's directions."""
    state_type = WienerFilterState if denominator is None else FilterAdamState
    kept = moment_names(settings, denominator)

    def new_state(count: Any, moments: dict[str, optax.Updates]) -> Any:
        return state_type(count, *map(moments.get, state_type._fields[1:]))

    def init(params: optax.Params) -> Any:
        moments = {name: _zeros_like(params) for name in kept}
        return new_state(jnp.zeros([], jnp.int32), moments)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, Any]:
        del params
        grads, structure = jax.tree.flatten(updates)
        count = optax.safe_increment(state.count)
        columns = [_column(state, name, structure) for name in kept]
        rows = [
            _update(jnp.asarray(g), dict(zip(kept, row, strict=True)), count, settings, denominator)
            for g, *row in zip(grads, *columns, strict=True)
        ]

        def tree(leaves: Any) -> Any:
            return jax.tree.unflatten(structure, leaves)

        moments = {name: tree(new[name] for _, new in rows) for name in kept}
        return tree(u for u, _ in rows), new_state(count, moments)

    return optax.GradientTransformation(init, update)


def _update(
    grad: Any,
    moments: dict[str, Any],
    count: Any,
    settings: FilterSettings,
    denominator: Denominator | None,
) -> tuple[Any, dict[str, Any]]:
    """The update of one leaf in the dtype of its gradient, and its new moments."""
    m = moments["exp_avg"]
    dtype = m.dtype
    before = Moments(m, moments.get("exp_var"), moments.get("exp_avg_sq"))
    update, after = direction(
        grad.astype(dtype),
        before,
        count.astype(dtype),
        settings,
        denominator,
        numbers=FLOAT64 if dtype == jnp.float64 else FLOAT32,
        xp=jnp,
    )
    new = {"exp_avg": after.m, "exp_var": after.s, "exp_avg_sq": after.v}
    return update.astype(grad.dtype), new


def _column(state: Any, name: str, structure: Any) -> list[Any]:
    """The leaves of a moment, in the order of those of the gradients."""
    moment = getattr(state, name)
    if moment is None and structure.num_leaves:
        raise ValueError(f"the state has no {name}: it is from an optimizer with other settings")
    return structure.flatten_up_to(moment)


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


def descend(
    direction: optax.GradientTransformation,
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: float,
    decoupled: bool,
    mask: Any,
) -> optax.GradientTransformation:
    """Follow a direction, with weight decay before it (in the gradient) or behind it."""
    require(weight_decay, "weight_decay", lambda x: 0 <= x < math.inf)
    if not callable(learning_rate):
        require(learning_rate, "learning_rate", lambda x: x >= 0)
    rate = optax.scale_by_learning_rate(learning_rate)
    if isinstance(weight_decay, (int, float)) and weight_decay == 0:
        return optax.chain(direction, rate)  # without decay, update needs no parameters
    decay = optax.add_decayed_weights(weight_decay, mask)
    if decoupled:
        return optax.chain(direction, decay, rate)
    return _in_float32(optax.chain(decay, direction, rate))


def _in_float32(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Compute updates of bfloat16 in float32: a small penalty would be lost in the gradient."""

    def widened(tree: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, Any]:
        updates = jax.tree.map(jnp.asarray, updates)
        params = None if params is None else widened(jax.tree.map(jnp.asarray, params))
        wide, state = inner.update(widened(updates), state, params)
        return jax.tree.map(lambda u, g: u.astype(g.dtype), wide, updates), state

    return optax.GradientTransformation(inner.init, update)


def require(value: Any, name: str, valid: Callable[[float], bool]) -> None:
    """Raise an error for a setting that is not valid, unless JAX traces it."""
    if isinstance(value, jax.core.Tracer):
        return
    try:
        known = not isinstance(value, str) and valid(float(value))
    except (TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(f"Invalid {name} value: {value!r}")

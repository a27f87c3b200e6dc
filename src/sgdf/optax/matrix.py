"""FilterMuon and FilterSOAP for optax, by the rule of `sgdf.matrix`."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sgdf.filter import FLOAT32, FLOAT64, FilterSettings, NumberRange
from sgdf.matrix import (
    COEFFICIENTS,
    LR_SCALES,
    MatrixSettings,
    MatrixState,
    direction,
    refreshed,
    shares,
    start,
    with_first_gradient,
)
from sgdf.optax.optimizers import filter_adamw
from sgdf.optax.transformation import require

#: What a parameter is: a matrix, a stack of matrices along its first dimensions, or neither.
KINDS = MATRIX, STACKED, REST = ("matrix", "stacked", "rest")


class MatrixFilterState(NamedTuple):
    """How many gradients there were, and a `sgdf.matrix.MatrixState` for every parameter."""

    count: Any
    matrices: Any


def filter_muon(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.85,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    *,
    gain_scale: float = 0.1,
    gain_power: float = 0.0,
    gain_eps: float = 0.0,
    slow_beta: float = 0.98,
    slow_weight: float = 0.56,
    eigenbasis: bool = False,
    basis_decay: float = 0.95,
    basis_interval: int = 10,
    max_basis_dim: int = 1024,
    turn_moments: bool = True,
    bias_correction: bool = True,
    ns_steps: int = 5,
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
    adjust_lr_fn: str | None = "match_rms_adamw",
    aux_learning_rate: optax.ScalarOrSchedule | None = None,
    aux_b1: float = 0.9,
    aux_b2: float = 0.95,
    aux_weight_decay: float = 0.0,
    aux_gain_scale: float = 2.0,
    aux_gain_power: float = 1.0,
    kinds: Any | Callable[[optax.Params], Any] | None = None,
) -> optax.GradientTransformation:
    """Muon with a filter in front: orthogonal steps along an estimate of the gradient.

    ```text
    m1 <- b1 m1 + (1-b1) G,  m2 <- slow_beta m2 + (1-slow_beta) G
    m   = (1-slow_weight) m1 + slow_weight m2,  m^ = m / bias
    G^  = m^ + gain_scale K^gain_power (G - m^)
    W  <- W - lr weight_decay W - lr 0.2 sqrt(max(rows, columns)) NewtonSchulz(G^)
    ```

    The result is that of `sgdf.FilterMuon` in PyTorch, which explains the settings; Newton-Schulz
    has the dtype of the state. Leaves that are no matrices are stepped by `filter_adamw`.

    Args:
        learning_rate: of matrices; a number or an optax schedule.
        b1: decay of the first average.
        b2: decay of s and v.
        eps: added to the denominator of Adam's division.
        weight_decay: decoupled, of matrices.
        gain_scale: the constant gain, or the factor on K.
        gain_power: exponent of K; 0: a constant gain.
        gain_eps: added to the denominator of K.
        slow_beta: decay of the second average.
        slow_weight: its part of the trend; 0: there is none.
        eigenbasis: divide in the eigenbasis first. The first gradient only builds the basis.
        basis_decay: decay of L and R.
        basis_interval: steps between two refreshes of a basis; leaves take turns.
        max_basis_dim: a longer side keeps its own coordinates.
        turn_moments: let s and v turn with the basis, instead of only sorting them.
        bias_correction: divide m by the sum of its weights.
        ns_steps: Newton-Schulz steps.
        ns_coefficients: of their polynomial.
        adjust_lr_fn: "match_rms_adamw", "original" or "spectral_unclamped".
        aux_learning_rate: of all other leaves. None: learning_rate.
        aux_b1: decay of their m.
        aux_b2: decay of their s and v.
        aux_weight_decay: their weight decay.
        aux_gain_scale: factor on their gain.
        aux_gain_power: exponent of their gain.
        kinds: a tree of "matrix", "stacked" and "rest", or a function from the parameters to one.
            Default: all leaves of two dimensions and more are matrices, embeddings and the head
            included, which is not what one wants for a language model. A matrix of more dimensions
            is all but the last by the last, as convolutions of flax; in a "stacked" leaf the last
            two dimensions are the matrix.

    Returns:
        An ``optax.GradientTransformation``; ``update`` needs the parameters.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from sgdf.optax import filter_muon
        >>> params = {"w": jnp.eye(3), "b": jnp.ones(3)}
        >>> optimizer = filter_muon(0.1, aux_learning_rate=0.05)
        >>> state = optimizer.init(params)
        >>> for _ in range(3):
        ...     grads = jax.grad(lambda p: jnp.sum(p["w"] ** 2) + jnp.sum(p["b"] ** 2))(params)
        ...     updates, state = optimizer.update(grads, state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> bool(jnp.sum(params["w"] ** 2) < 3), bool(jnp.sum(params["b"] ** 2) < 3)
        (True, True)
    """
    if adjust_lr_fn not in (None, *LR_SCALES):
        raise ValueError(f"Invalid adjust_lr_fn value: {adjust_lr_fn!r}")
    settings = MatrixSettings(
        FilterSettings((b1, b2), gain_eps, gain_scale, gain_power, True, bias_correction),
        slow_beta,
        slow_weight,
        eigenbasis,
        eps,
        basis_decay,
        max_basis_dim,
        turn_moments,
        True,
        ns_steps,
        ns_coefficients,
        adjust_lr_fn,
    )
    rest = filter_adamw(
        learning_rate if aux_learning_rate is None else aux_learning_rate,
        aux_b1,
        aux_b2,
        eps,
        aux_weight_decay,
        gain_scale=aux_gain_scale,
        gain_power=aux_gain_power,
        gain_eps=gain_eps,
    )
    return _by_kind(settings, basis_interval, learning_rate, weight_decay, rest, kinds)


def filter_soap(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.85,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    gain_scale: float = 0.1,
    gain_power: float = 0.0,
    gain_eps: float = 0.0,
    slow_beta: float = 0.98,
    slow_weight: float = 0.56,
    basis_decay: float = 0.95,
    basis_interval: int = 10,
    max_basis_dim: int = 1024,
    turn_moments: bool = True,
    aux_learning_rate: optax.ScalarOrSchedule | None = None,
    aux_b1: float = 0.9,
    aux_b2: float = 0.95,
    aux_weight_decay: float = 0.0,
    aux_gain_scale: float = 2.0,
    aux_gain_power: float = 1.0,
    kinds: Any | Callable[[optax.Params], Any] | None = None,
) -> optax.GradientTransformation:
    """SOAP with a filter in front: Adam of an estimate of the gradient, in a slow eigenbasis.

    The result is that of `sgdf.FilterSOAP` in PyTorch, which explains the rule and the settings.
    The first gradient only builds the basis, and its update is 0.

    Args:
        learning_rate: of matrices; a number or an optax schedule.
        b1: decay of the first average.
        b2: decay of s and v.
        eps: added to the denominator of Adam's division.
        weight_decay: decoupled, of matrices.
        gain_scale: the constant gain, or the factor on K; 0 is SOAP.
        gain_power: exponent of K; 0: a constant gain.
        gain_eps: added to the denominator of K.
        slow_beta: decay of the second average.
        slow_weight: its part of the trend; 0: there is none.
        basis_decay: decay of L and R.
        basis_interval: steps between two refreshes of a basis; leaves take turns.
        max_basis_dim: a longer side keeps its own coordinates.
        turn_moments: let s and v turn with the basis, instead of only sorting them.
        aux_learning_rate: of all leaves that are no matrices. None: learning_rate.
        aux_b1: decay of their m.
        aux_b2: decay of their s and v.
        aux_weight_decay: their weight decay.
        aux_gain_scale: factor on their gain.
        aux_gain_power: exponent of their gain.
        kinds: which leaves are matrices, as in `filter_muon`.

    Returns:
        An ``optax.GradientTransformation``; ``update`` needs the parameters.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from sgdf.optax import filter_soap
        >>> params = {"w": jnp.eye(3), "b": jnp.ones(3)}
        >>> optimizer = filter_soap(0.1)
        >>> state = optimizer.init(params)
        >>> for _ in range(3):
        ...     grads = jax.grad(lambda p: jnp.sum(p["w"] ** 2) + jnp.sum(p["b"] ** 2))(params)
        ...     updates, state = optimizer.update(grads, state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> bool(jnp.sum(params["w"] ** 2) < 3)
        True
    """
    settings = MatrixSettings(
        FilterSettings((b1, b2), gain_eps, gain_scale, gain_power),
        slow_beta,
        slow_weight,
        True,
        eps,
        basis_decay,
        max_basis_dim,
        turn_moments,
        False,
    )
    rest = filter_adamw(
        learning_rate if aux_learning_rate is None else aux_learning_rate,
        aux_b1,
        aux_b2,
        eps,
        aux_weight_decay,
        gain_scale=aux_gain_scale,
        gain_power=aux_gain_power,
        gain_eps=gain_eps,
    )
    return _by_kind(settings, basis_interval, learning_rate, weight_decay, rest, kinds)


def _by_kind(
    settings: MatrixSettings,
    interval: int,
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: float,
    rest: optax.GradientTransformation,
    kinds: Any,
) -> optax.GradientTransformation:
    """The transformation of matrices for matrices, `rest` for the other leaves."""
    _check(settings, interval, weight_decay)

    def matrices(kind: str) -> optax.GradientTransformation:
        step = _matrix_transformation(settings, interval, weight_decay, kind == STACKED)
        return optax.chain(step, optax.scale_by_learning_rate(learning_rate))

    parts = {MATRIX: matrices(MATRIX), STACKED: matrices(STACKED), REST: rest}
    return optax.partition(parts, _kinds_by_shape if kinds is None else kinds)


def _check(settings: MatrixSettings, interval: int, weight_decay: Any) -> None:
    """Validate the settings of matrices, as far as they are numbers while JAX traces."""
    (b1, b2), eps, gain_scale, gain_power, *_ = settings.filter
    decays = {"b1": b1, "b2": b2, "slow_beta": settings.slow_beta}
    decays["basis_decay"] = settings.basis_decay
    for name, value in decays.items():
        require(value, name, lambda x: 0 <= x < 1)
    numbers = {"eps": settings.eps, "gain_eps": eps, "weight_decay": weight_decay}
    numbers |= {"gain_scale": gain_scale, "gain_power": gain_power}
    for name, value in numbers.items():
        require(value, name, lambda x: 0 <= x < math.inf)
    require(settings.slow_weight, "slow_weight", lambda x: 0 <= x <= 1)
    counts = {"basis_interval": interval, "max_basis_dim": settings.max_basis_dim}
    for name, value in {**counts, "ns_steps": settings.ns_steps}.items():
        require(value, name, lambda x: x >= 1 and x == int(x))


def _kinds_by_shape(params: optax.Params) -> Any:
    def kind(p: Any) -> str:
        return MATRIX if jnp.ndim(p) >= 2 and jnp.size(p) and not jnp.iscomplexobj(p) else REST

    return jax.tree.map(kind, params)


def _matrix_transformation(
    settings: MatrixSettings, interval: int, weight_decay: float, stacked: bool
) -> optax.GradientTransformation:
    """The direction of matrices, with their decay; the learning rate comes after it."""

    def init(params: optax.Params) -> MatrixFilterState:
        def new(p: Any) -> MatrixState:
            x = _as_matrices(jnp.asarray(p, jnp.promote_types(p.dtype, jnp.float32)), stacked)
            empty = start(x, settings, jnp)
            if not settings.eigenbasis:
                return empty
            return with_first_gradient(jnp.zeros_like(x), empty, settings, _range(x), jnp)

        return MatrixFilterState(jnp.zeros([], jnp.int32), jax.tree.map(new, params))

    def update(
        updates: optax.Updates, state: MatrixFilterState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, MatrixFilterState]:
        if params is None:
            raise ValueError("filter_muon and filter_soap need the parameters in update")
        grads: list[Any]
        structure: Any
        grads, structure = jax.tree.flatten(updates)
        states = structure.flatten_up_to(state.matrices)
        turns = _turns(grads, settings, interval, stacked)
        moves = (state.count > 0) if settings.eigenbasis else True
        new_updates, new_states = [], []
        with jax.default_matmul_precision("float32"):
            columns = zip(grads, states, structure.flatten_up_to(params), turns, strict=True)
            for g, before, p, turn in columns:
                x = _as_matrices(g.astype(before.m.dtype), stacked)
                u, after = _step(x, before, state.count, settings, interval, turn)
                u = u.reshape(g.shape) + jnp.where(moves, weight_decay, 0.0) * p.astype(u.dtype)
                new_updates.append(u.astype(g.dtype))
                new_states.append(after)
        count = optax.safe_increment(state.count)
        matrices = jax.tree.unflatten(structure, new_states)
        return jax.tree.unflatten(structure, new_updates), MatrixFilterState(count, matrices)

    return optax.GradientTransformation(init, update)


def _step(
    g: Any, state: MatrixState, count: Any, settings: MatrixSettings, interval: int, turn: int
) -> tuple[Any, MatrixState]:
    """The update of one leaf and its new state, after `count` gradients."""
    numbers = _range(g)
    if not settings.eigenbasis:
        t = (count + 1).astype(g.dtype)
        return direction(g, state, t, settings, numbers=numbers, xp=jnp)

    def build(g: Any, state: MatrixState) -> tuple[Any, MatrixState]:
        return jnp.zeros_like(g), with_first_gradient(g, state, settings, numbers, jnp)

    def move(g: Any, state: MatrixState) -> tuple[Any, MatrixState]:
        t = jnp.maximum(count, 1)
        u, state = direction(g, state, t.astype(g.dtype), settings, numbers=numbers, xp=jnp)
        refresh = functools.partial(refreshed, settings=settings, numbers=numbers, xp=jnp)
        return u, jax.lax.cond((t + turn) % interval == 0, refresh, lambda s: s, state)

    return jax.lax.cond(count == 0, build, move, g, state)  # type: ignore[no-any-return]


def _turns(grads: Any, settings: MatrixSettings, interval: int, stacked: bool) -> list[int]:
    """When each basis is refreshed, as in `sgdf.FilterMuon`; matrices and stacks by themselves."""
    shapes = [_as_matrices(jnp.empty_like(g), stacked).shape[-2:] for g in grads]
    sums = [sum(side**3 for side in shape if settings.has_basis(side)) for shape in shapes]
    return shares(sums, interval)


def _as_matrices(x: Any, stacked: bool) -> Any:
    return x if stacked or x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _range(x: Any) -> NumberRange:
    return FLOAT64 if x.dtype == jnp.float64 else FLOAT32

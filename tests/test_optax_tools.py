"""`sgdf.optax` and the rules of optax: trees, JAX's transformations, wrappers, checkpoints."""

import functools
import itertools
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

from jax_runs import (  # noqa: E402
    CONSTANT,
    NESTEROV,
    NOISE,
    NOISE32,
    PAIR,
    PAIR_GRADS,
    ROUNDING,
    START,
    START32,
    assert_trees_close,
    assert_trees_identical,
    descend,
    scanned,
    stepper,
    through_arrays,
    through_pickle,
)
from sgdf.optax import filter_adam, filter_adamw, scale_by_wiener_filter, sgdf  # noqa: E402

OPTIMIZERS = {"sgdf": sgdf, "filter_adam": filter_adam}
#: One of each structure of the state; other settings are arithmetic.
STRUCTURES = OPTIMIZERS | {
    "sgdf-constant": functools.partial(sgdf, **CONSTANT),
    "adam-constant": functools.partial(filter_adam, **CONSTANT),
    "adam-derived": functools.partial(filter_adam, second_moment="derived"),
    "adamw-fluctuation": functools.partial(filter_adamw, second_moment="fluctuation"),
}
over_optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
over_structures = pytest.mark.parametrize("make", STRUCTURES.values(), ids=STRUCTURES)


# --- trees and types of gradients --------------------------------------------------------------


class Layer(NamedTuple):
    weight: Any
    bias: Any


V = START32[:4]
TREES = {
    "leaf": V,
    "None": {"a": V, "frozen": None, "b": [None, V]},
    "nested": {"a": ((V,), [V, (V, V)]), "b": {"c": {"d": V}}},
    "NamedTuples": Layer(Layer(V, None), (V, Layer(V, V))),
    "triples": ((V, V, V), (V, V, V)),  # as many as the filter returns
    "empty dict": {},
    "empty tuple": (),
    "nothing": {"frozen": None, "also": ()},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
@over_optimizers
def test_every_leaf_of_a_tree_as_if_alone(make, tree):
    optimizer = make(0.1)
    leaves, structure = jax.tree.flatten(tree)
    grads = [
        structure.unflatten([NOISE32[t + i, :4] for i in range(len(leaves))]) for t in range(3)
    ]
    params, state = descend(optimizer, tree, grads)
    assert state[0].count == 3
    alone = [
        descend(optimizer, leaf, [NOISE32[t + i, :4] for t in range(3)])[0]
        for i, leaf in enumerate(leaves)
    ]
    assert_trees_close(params, structure.unflatten(alone))


@pytest.mark.parametrize(
    ("param", "grad"), [(1.0, 2.0), (START, NOISE[0])], ids=["float", "numpy float64"]
)
@over_optimizers
def test_gradients_need_not_be_jax_arrays(make, param, grad):
    """Like optax's own optimizers: converted to JAX's precision, without a warning."""
    optimizer = make(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updates, _ = optimizer.update({"w": grad}, optimizer.init({"w": param}), {"w": param})
    expected, _ = optimizer.update(jnp.asarray(grad), optimizer.init(jnp.asarray(param)))
    assert_trees_close(updates["w"], expected)


def test_bad_usage_is_reported_as_optax_does():
    def message(optimizer, grads, *params):
        with pytest.raises(ValueError) as raised:  # noqa: PT011, the message is optax's
            optimizer.update(grads, optimizer.init({"w": V}), *params)
        return str(raised.value)

    asks_for_params = message(optax.adamw(0.1), {"w": V})
    for make, decoupled in itertools.product((sgdf, filter_adam), (False, True)):
        decayed = make(0.1, weight_decay=0.01, decoupled_weight_decay=decoupled)
        assert message(decayed, {"w": V}) == asks_for_params
        assert "'other'" in message(make(0.1), {"other": V}, {"w": V})


@over_optimizers
def test_parameters_are_not_needed_without_decay(make):
    optimizer = make(0.1)
    state = optimizer.init(V)
    assert_trees_identical(optimizer.update(V, state), optimizer.update(V, state, V))


# --- JAX's transformations ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ROUNDING)
@over_structures
def test_jit_traces_once_and_donates(make, dtype):
    optimizer, traces = make(optax.linear_schedule(0.1, 0.01, 20)), []

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, grads):
        traces.append(None)
        return stepper(optimizer)(params, state, grads)

    grads = [{"w": jnp.asarray(g, dtype)} for g in NOISE[:20]]
    params = {"w": jnp.asarray(START, dtype)}
    expected = descend(optimizer, params, grads)
    params, state = jax.tree.map(jnp.copy, params), optimizer.init(params)
    for g in grads:
        params, state = step(params, state, g)
    assert len(traces) == 1
    assert_trees_close((params, state), expected, ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ROUNDING)
@over_structures
def test_scan_over_steps(make, dtype):
    optimizer = make(0.01, weight_decay=1e-2)
    grads, start = jnp.asarray(NOISE[:20], dtype), jnp.asarray(START, dtype)
    actual = jax.jit(scanned(optimizer))(start, grads)
    assert_trees_close(actual, descend(optimizer, start, grads), ROUNDING[dtype])


@over_optimizers
def test_vmap_over_seeds(make):
    optimizer = make(0.01, weight_decay=1e-2)
    run = scanned(optimizer)
    starts = jnp.stack([START32, -START32, START32 / 2])
    grads = jnp.stack([NOISE32[:30], NOISE32[30:60], NOISE32[60:90]])
    together = jax.jit(jax.vmap(run))(starts, grads)
    run = jax.jit(run)
    for seed in range(3):
        alone = run(starts[seed], grads[seed])
        own = jax.tree.map(lambda leaf, seed=seed: leaf[seed], together)
        assert_trees_close(own, alone)


# --- optax's wrappers --------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "moments"), [({}, 2), (CONSTANT, 1)])
def test_masked_filter_passes_the_rest_through(options, moments):
    everywhere = scale_by_wiener_filter(**options)
    masked = optax.masked(everywhere, {"w": True, "b": False})
    state, full = masked.init(PAIR), everywhere.init(PAIR)
    assert len(jax.tree.leaves(state)) == 1 + moments  # count, and moments only for w
    for grads in PAIR_GRADS[:3]:
        updates, state = masked.update(grads, state)
        filtered, full = everywhere.update(grads, full)
    assert_trees_identical(updates, {"w": filtered["w"], "b": grads["b"]})
    assert not np.allclose(filtered["b"], grads["b"])


@over_structures
def test_multi_transform_gives_each_group_its_own(make):
    labels = {"w": "filtered", "b": "plain"}
    groups = {"filtered": make(0.1), "plain": optax.sgd(0.2), "unused": make(0.3)}
    actual, _ = descend(optax.multi_transform(groups, labels), PAIR, PAIR_GRADS[:5])
    expected = {
        name: descend(groups[label], PAIR[name], [g[name] for g in PAIR_GRADS[:5]])[0]
        for name, label in labels.items()
    }
    assert_trees_close(actual, expected)


@over_optimizers
def test_apply_if_finite_skips_the_step_and_keeps_the_state(make):
    finite = PAIR_GRADS[:6]
    poisoned = {"w": np.full_like(START32, np.nan), "b": finite[0]["b"]}
    optimizer = optax.apply_if_finite(make(0.1), max_consecutive_errors=2)
    params, state = descend(optimizer, PAIR, [*finite[:3], poisoned, *finite[3:]], jit=True)
    assert state.total_notfinite == 1
    expected = descend(make(0.1), PAIR, finite)
    assert_trees_close((params, state.inner_state), expected)


@pytest.mark.parametrize("dtype", ROUNDING)
@over_optimizers
def test_multi_steps_filters_the_mean_gradient(make, dtype):
    start, grads = jnp.asarray(START, dtype), [jnp.asarray(g, dtype) for g in NOISE32[:10]]
    accumulating = optax.MultiSteps(make(0.1), every_k_schedule=2)
    params, state = descend(accumulating, start, grads, jit=True)
    assert state.gradient_step == 5
    means = [(a + b) / 2 for a, b in zip(grads[::2], grads[1::2], strict=True)]
    expected = descend(make(0.1), start, means)
    assert_trees_close((params, state.inner_opt_state), expected, ROUNDING[dtype])


@over_optimizers
def test_injected_learning_rate_is_changed_in_the_state(make):
    optimizer, traces = optax.inject_hyperparams(make)(learning_rate=0.5), []

    @jax.jit
    def update(grads, state, params):
        traces.append(None)
        return optimizer.update(grads, state, params)

    state = optimizer.init(PAIR)
    for grads in PAIR_GRADS[:3]:
        _, state = update(grads, state, PAIR)
    full, _ = update(PAIR_GRADS[3], state, PAIR)
    state.hyperparams["learning_rate"] = jnp.float32(0.25)
    halved, _ = update(PAIR_GRADS[3], state, PAIR)
    assert_trees_identical(halved, jax.tree.map(lambda u: u / 2, full))
    assert len(traces) == 1


@over_optimizers
def test_injected_hyperparameters_scheduled_and_in_float32_for_bfloat16(make):
    """By default optax makes them bfloat16, in which 0.999 is 1."""
    inject = optax.inject_hyperparams(make, hyperparam_dtype=jnp.float32)
    optimizer = inject(0.1, b1=optax.linear_schedule(0.5, 0.9, 10))
    start, grads = jnp.asarray(START, "bfloat16"), jnp.asarray(NOISE[:10], "bfloat16")
    params, state = descend(optimizer, start, grads)
    assert params.dtype == jnp.bfloat16
    assert jnp.isfinite(params).all()
    assert 0.5 < state.hyperparams["b1"] < 0.9


@over_structures
def test_optax_finds_the_parameters_in_the_state(make):
    state = make(0.1).init(PAIR)
    moments, *_ = optax.tree_map_params(make(0.1), lambda moment: moment + 1, state)
    assert moments.count == 0
    kept = [moment for moment in moments[1:] if moment is not None]
    assert len(kept) == len(jax.tree.leaves(moments)[1:]) // 2
    for moment in kept:
        assert_trees_identical(moment, jax.tree.map(jnp.ones_like, PAIR))


# --- checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("round_trip", [through_pickle, through_arrays])
@over_structures
def test_state_survives_a_round_trip(make, round_trip):
    optimizer = make(optax.linear_schedule(0.1, 0.01, 20), weight_decay=1e-2)
    step = jax.jit(stepper(optimizer))
    saved = PAIR, optimizer.init(PAIR)
    for grads in PAIR_GRADS[:10]:
        saved = step(*saved, grads)
    resumed = round_trip(saved)
    for grads in PAIR_GRADS[10:20]:
        saved, resumed = step(*saved, grads), step(*resumed, grads)
    assert_trees_identical(resumed, saved)


@pytest.mark.parametrize("params", [PAIR, PAIR["w"]], ids=["tree", "leaf"])
def test_a_state_without_a_moment_that_is_needed_is_refused(params):
    constant, full = scale_by_wiener_filter(**CONSTANT), scale_by_wiener_filter()
    with pytest.raises(ValueError, match="the state has no exp_var"):
        full.update(params, constant.init(params))
    _, state = constant.update(params, full.init(params))  # s is not needed any more
    assert state.exp_var is None


IMPOSSIBLE = [
    *({"b1": b} for b in (1, 1.0, 2, -0.1, float("nan"), "0.9")),
    *({"b2": b} for b in (1, 2, -0.1)),
    *({name: value} for name in ("eps", "gain_eps") for value in (-1, float("nan"), "1e-8")),
    *({name: -1.0} for name in ("gain_scale", "gain_power", "weight_decay")),
]


@pytest.mark.parametrize("wrong", IMPOSSIBLE, ids=str)
@pytest.mark.parametrize("make", [sgdf, filter_adam, filter_adamw, scale_by_wiener_filter])
def test_impossible_settings_are_refused(make, wrong):
    ((name, value),) = wrong.items()
    if make is scale_by_wiener_filter:
        if name == "weight_decay":
            return
        with pytest.raises(ValueError, match=f"Invalid {name} value"):
            make(**wrong)
        return
    with pytest.raises(ValueError, match=f"Invalid {name} value"):
        make(0.1, **wrong)
    if isinstance(value, str):
        return
    injected = optax.inject_hyperparams(make)(0.1, **wrong)
    with pytest.raises(ValueError, match=f"Invalid {name} value"):
        injected.init(PAIR)


@pytest.mark.parametrize("make", [sgdf, filter_adam, filter_adamw])
@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
@pytest.mark.parametrize("number", [np.float32(-1), jnp.float32(-1), float("nan")], ids=repr)
def test_an_impossible_number_of_any_library_is_refused(make, name, number):
    with pytest.raises(ValueError, match=f"Invalid {name} value"):
        make(**{"learning_rate": 0.1, name: number})


@pytest.mark.parametrize("make", [filter_adam, filter_adamw])
def test_impossible_second_moments_are_refused(make):
    with pytest.raises(ValueError, match=r"'separate', 'derived', 'fluctuation'\): 'deriven'"):
        make(0.1, second_moment="deriven")
    with pytest.raises(ValueError, match="second_moment='derived' needs a b1 above 0"):
        make(0.1, b1=0, second_moment="derived")
    with pytest.raises(ValueError, match="second_moment='fluctuation' needs a b1 above 0"):
        optax.inject_hyperparams(make)(0.1, b1=0.0, second_moment="fluctuation").init(PAIR)
    make(0.1, b1=0, second_moment="separate")


def test_an_injected_constant_gain_keeps_no_variance_if_it_is_static():
    inject = optax.inject_hyperparams(sgdf, static_args="gain_power")
    optimizer = inject(0.1, **NESTEROV)
    params, state = descend(optimizer, PAIR, PAIR_GRADS[:5])
    assert state.inner_state[-2].exp_var is None
    traced, _ = descend(optax.inject_hyperparams(sgdf)(0.1, **NESTEROV), PAIR, PAIR_GRADS[:5])
    assert_trees_close(traced, params)


AFTER = {"adamw": optax.adamw(0.05)}
if hasattr(optax.contrib, "muon"):  # new in optax 0.2.5
    AFTER["muon"] = optax.contrib.muon(0.05)


@pytest.mark.parametrize("options", [{}, CONSTANT], ids=["paper", "constant"])
@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER.keys())
def test_the_filter_in_front_of_another_optimizer(after, options):
    """The other sees the estimates instead of the gradients; matrices and a vector."""
    params = {"w": START.astype(np.float32).reshape(4, 5), "b": START.astype(np.float32)[:5]}
    grads = [{"w": g.reshape(4, 5), "b": g[5:10]} for g in NOISE32[:4]]
    filtered = scale_by_wiener_filter(**options)
    actual, _ = descend(optax.chain(filtered, after), params, grads, jit=True)
    estimates, state = [], filtered.init(params)
    for g in grads:
        estimate_, state = filtered.update(g, state)
        estimates.append(estimate_)
    expected, _ = descend(after, params, estimates, jit=True)
    assert_trees_close(actual, expected, 1e-4)
    unfiltered, _ = descend(after, params, grads, jit=True)
    assert not np.allclose(actual["w"], unfiltered["w"], rtol=1e-2)

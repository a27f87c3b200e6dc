"""`sgdf.optax` agrees with the torch optimizers and follows the rules of optax."""

import functools
import itertools
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from sgdf import SGDF, FilterAdam

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

from jax_runs import (  # noqa: E402
    NOISE,
    NOISE32,
    PAIR,
    PAIR_GRADS,
    ROUNDING,
    START,
    START32,
    STEPS,
    TOLERANCE,
    as_complex,
    assert_same_path,
    assert_trees_close,
    assert_trees_identical,
    descend,
    gradient,
    optax_paths,
    precision,
    scanned,
    stepper,
    through_arrays,
    through_pickle,
)
from sgdf.optax import filter_adam, filter_adamw, scale_by_wiener_filter, sgdf  # noqa: E402

TWINS = {"sgdf": (SGDF, sgdf, 0.05), "filter_adam": (FilterAdam, filter_adam, 0.01)}
OPTIMIZERS = {"sgdf": sgdf, "filter_adam": filter_adam}
CONSTANT = {"gain_scale": 0.05, "gain_power": 0}
#: One of each structure of the state; other settings are arithmetic that the comparisons cover.
STRUCTURES = OPTIMIZERS | {
    "sgdf-constant": functools.partial(sgdf, **CONSTANT),
    "adam-constant": functools.partial(filter_adam, **CONSTANT),
    "adam-derived": functools.partial(filter_adam, second_moment="derived"),
    "adamw-fluctuation": functools.partial(filter_adamw, second_moment="fluctuation"),
}
GAINS = {
    "paper": {"gain_scale": 2.0, "gain_power": 1.0},
    "wiener": {"gain_scale": 1.0, "gain_power": 1.0},
    "release": {"gain_scale": 1.0, "gain_power": 0.5},
}
CORRECTIONS = {"corrected": {}, "uncorrected": {"correction": False}}
DECAYS = {
    "undecayed": {},
    "coupled": {"weight_decay": 1e-2},
    "decoupled": {"weight_decay": 1e-2, "decoupled_weight_decay": True},
}
SETTINGS = {
    "-".join(names): GAINS[names[0]] | CORRECTIONS[names[1]] | DECAYS[names[2]]
    for names in itertools.product(GAINS, CORRECTIONS, DECAYS)
}
over_twins = pytest.mark.parametrize("twin", TWINS)
over_optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
over_structures = pytest.mark.parametrize("make", STRUCTURES.values(), ids=STRUCTURES.keys())
over_gains = pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS.keys())


# --- agreement with torch ----------------------------------------------------------------------


def torch_paths(build, dtype, names=("w",), lrs=None):
    """Parameters after every step; `build` creates the optimizer from a dict of parameters."""
    params = {name: torch.nn.Parameter(torch.tensor(START.astype(dtype))) for name in names}
    optimizer, path = build(params), []
    for t in range(STEPS):
        for p in params.values():
            p.grad = torch.tensor(gradient(p.detach().numpy(), t, dtype))
        for group in optimizer.param_groups:
            group["lr"] = lrs[t] if lrs else group["lr"]
        optimizer.step()
        path.append([p.detach().numpy().copy() for p in params.values()])
    return dict(zip(names, np.stack(path, axis=1), strict=True))


@functools.cache
def paths_of_all_settings(twin, dtype):
    torch_class, make, lr = TWINS[twin]

    def build(params):
        groups = [{"params": [params[key]], **SETTINGS[key]} for key in SETTINGS]
        return torch_class(groups, lr)

    with precision(dtype):
        ours = optax_paths({key: make(lr, **SETTINGS[key]) for key in SETTINGS}, dtype)
    return ours, torch_paths(build, dtype, names=tuple(SETTINGS))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)
@over_twins
def test_agrees_with_torch(twin, dtype, settings):
    ours, theirs = paths_of_all_settings(twin, dtype)
    assert_same_path(ours[settings]["w"], theirs[settings], dtype)


@over_twins
def test_settings_that_are_compared_differ(twin):
    """Otherwise the comparison above would say nothing about them."""
    _, theirs = paths_of_all_settings(twin, np.float64)
    for one, other in itertools.combinations(theirs.values(), 2):
        assert np.abs(one - other).max() > 1e-3


@over_twins
def test_learning_rate_schedules_agree_with_torch(twin):
    torch_class, make, lr = TWINS[twin]
    schedules = {
        "cosine": optax.cosine_decay_schedule(lr, STEPS),
        "drops": optax.piecewise_constant_schedule(lr, {50: 0.1, 120: 0.5}),
    }
    with precision(np.float64):
        actual = optax_paths(
            {key: make(schedule, **DECAYS["decoupled"]) for key, schedule in schedules.items()},
            np.float64,
        )
        steps = jnp.arange(STEPS, dtype=jnp.int32)
        rates = {key: schedule(steps).tolist() for key, schedule in schedules.items()}
    for key, lrs in rates.items():
        assert lrs[0] > 1.5 * lrs[-1] > 0
        expected = torch_paths(
            lambda p: torch_class(p.values(), **DECAYS["decoupled"]), np.float64, lrs=lrs
        )
        assert_same_path(actual[key]["w"], expected["w"], np.float64)


@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
@over_twins
def test_weight_decay_mask_is_a_parameter_group(twin, decay):
    torch_class, make, lr = TWINS[twin]
    masks = {"tree": {"w": True, "b": False}, "function": lambda p: {k: k == "w" for k in p}}
    with precision(np.float64):
        optimizers = {key: make(lr, mask=mask, **DECAYS[decay]) for key, mask in masks.items()}
        actual = optax_paths(optimizers, np.float64, names=("w", "b"))

    def build(p):
        groups = [{"params": [p["w"]]}, {"params": [p["b"]], "weight_decay": 0.0}]
        return torch_class(groups, lr, **DECAYS[decay])

    expected = torch_paths(build, np.float64, names=("w", "b"))
    assert np.abs(expected["w"] - expected["b"]).max() > 1e-3
    for key, name in itertools.product(masks, expected):
        assert_same_path(actual[key][name], expected[name], np.float64)


@over_twins
def test_injected_hyperparameters_agree_with_torch(twin):
    """Every number is a traced value and none at its default; the flags stay Python values."""
    torch_class, make, lr = TWINS[twin]
    settings = GAINS["release"] | DECAYS["decoupled"] | {"eps": 1e-5, "correction": False}
    injected = optax.inject_hyperparams(make)(lr, b1=0.8, b2=0.99, **settings)
    with precision(np.float64):
        actual = optax_paths({"injected": injected}, np.float64)["injected"]
        names = injected.init({"w": jnp.asarray(START)}).hyperparams.keys()
    numbers = "learning_rate b1 b2 eps weight_decay gain_scale gain_power"
    assert names == set(numbers.split())
    expected = torch_paths(
        lambda p: torch_class(p.values(), lr, betas=(0.8, 0.99), **settings), np.float64
    )
    assert_same_path(actual["w"], expected["w"], np.float64)


@pytest.mark.skipif(
    not hasattr(optax.contrib, "split_real_and_imaginary"), reason="optax has no such wrapper"
)
@over_twins
def test_complex_parameters_agree_with_torch_when_split(twin):
    torch_class, make, lr = TWINS[twin]
    start = {"z": as_complex(START), "x": START32}
    grads = [{"z": as_complex(g), "x": g} for g in NOISE32[:20]]
    optimizer = optax.contrib.split_real_and_imaginary(make(lr, **DECAYS["coupled"]))
    actual, _ = descend(optimizer, start, grads, jit=True)

    params = {name: torch.nn.Parameter(torch.tensor(p)) for name, p in start.items()}
    reference = torch_class(params.values(), lr, **DECAYS["coupled"])
    for g in grads:
        for name, p in params.items():
            p.grad = torch.tensor(g[name])
        reference.step()
    for name, p in params.items():
        assert actual[name].dtype == start[name].dtype
        np.testing.assert_allclose(actual[name], p.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
@over_twins
def test_low_precision_state_agrees_with_torch(twin, low):
    """To the precision of float32, that of the moments."""
    torch_class, make, lr = TWINS[twin]
    p = torch.nn.Parameter(torch.tensor(START).to(getattr(torch, low)))
    reference, grads = torch_class([p], lr), []
    for g in NOISE[:10]:
        p.grad = torch.tensor(g).to(p.dtype)
        grads.append(jnp.asarray(p.grad.float().numpy(), low))
        reference.step()
    params, (moments, *_) = descend(make(lr), jnp.asarray(START, low), grads)
    assert params.dtype == low
    for name, value in reference.state[p].items():
        if name != "step":
            assert getattr(moments, name).dtype == jnp.float32
            np.testing.assert_allclose(getattr(moments, name), value.numpy(), rtol=1e-5, atol=1e-20)


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_a_small_penalty_is_not_lost_in_low_precision(low):
    """1 + 5e-4 * 2 is 1 in bfloat16."""
    p = torch.nn.Parameter(torch.tensor([2.0]).to(getattr(torch, low)))
    p.grad = torch.ones_like(p)
    SGDF([p], 0.1, weight_decay=5e-4).step()
    transformation = sgdf(0.1, weight_decay=5e-4)
    params, grads = jnp.asarray([2.0], low), jnp.asarray([1.0], low)
    updates, _ = transformation.update(grads, transformation.init(params), params)
    assert updates.dtype == low
    state = transformation.update(grads, transformation.init(params), params)[1]
    mean = next(leaf for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.float32)
    exact = 0.1 * (1 + 5e-4 * 2)  # (1 - b1) times the penalised gradient
    np.testing.assert_allclose(mean, [exact], rtol=1e-6)


# --- properties of the filter ------------------------------------------------------------------


@pytest.mark.parametrize("correction", [True, False])
@over_gains
def test_first_step_gives_the_gradient(gain, correction):
    g = jnp.asarray(NOISE32[0])
    filtered = scale_by_wiener_filter(correction=correction, **gain)
    g_hat, state = filtered.update(g, filtered.init(g))
    np.testing.assert_allclose(g_hat, g, rtol=2e-6)
    assert state.count == 1

    adam = filter_adam(0.1, correction=correction, **gain)
    update, _ = adam.update(g, adam.init(g))
    np.testing.assert_allclose(update, -0.1 * g / (jnp.abs(g) + 1e-8), rtol=2e-6)


# Without filter_adam at eps=0: there Adam's own denominator gives 0/0.
@pytest.mark.parametrize("dtype", ["float32", "float16"])  # float16 rounds 1e-8 to 0
@pytest.mark.parametrize(
    ("make", "eps"), [(sgdf, 1e-8), (sgdf, 0.0), (filter_adam, 1e-8)], ids=["sgdf", "eps=0", "adam"]
)
@over_gains
def test_zero_gradients_move_nothing(make, eps, dtype, gain):
    start = jnp.asarray(START, dtype)
    still = jnp.arange(START.size) % 2 == 0
    partly = [jnp.where(still, 0, g).astype(dtype) for g in NOISE32[:5]]
    for grads, unmoved in (([jnp.zeros_like(start)] * 5, jnp.ones_like(still)), (partly, still)):
        params, state = descend(make(0.1, eps=eps, **gain), start, grads)
        assert (params == start)[unmoved].all()
        assert unmoved.all() or (params != start).any()
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((params, state)))


@pytest.mark.parametrize(
    ("param", "grad", "state"),
    [
        ("bfloat16", "bfloat16", "float32"),
        ("float16", "float16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float64", "float64", "float64"),
        ("float64", "float32", "float64"),
    ],
)
@pytest.mark.parametrize("make", [lambda _: scale_by_wiener_filter(), sgdf, filter_adam])
def test_state_dtype_is_the_parameters_and_update_dtype_the_gradients(make, param, grad, state):
    with precision(np.float64):
        optimizer = make(0.1)
        params = {"w": jnp.ones(2, param)}
        before = jax.eval_shape(optimizer.init, params)
        updates, after = jax.eval_shape(optimizer.update, {"w": jnp.ones(2, grad)}, before, params)
        assert updates["w"].dtype == grad
        for leaves in (jax.tree.leaves(before), jax.tree.leaves(after)):
            assert {leaf.dtype.name for leaf in leaves} == {state, "int32"}


def test_complex_parameters_are_refused_by_name_of_the_remedy():
    for optimizer in (scale_by_wiener_filter(), sgdf(0.1), filter_adam(0.1)):
        with pytest.raises(TypeError, match=r"optax\.contrib\.split_real_and_imaginary.*complex64"):
            optimizer.init({"x": START32, "z": as_complex(START)})


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
    for make, decay in itertools.product((sgdf, filter_adam), ("coupled", "decoupled")):
        assert message(make(0.1, **DECAYS[decay]), {"w": V}) == asks_for_params
    for make in (sgdf, filter_adam):
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
def test_chain_filters_the_clipped_gradient(make):
    def clipped(grads):
        norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in grads.values()))
        return {name: (g / max(norm, 1.0)).astype(np.float32) for name, g in grads.items()}

    chain = optax.chain(optax.clip_by_global_norm(1.0), make(0.1))
    actual, _ = descend(chain, PAIR, PAIR_GRADS[:10])
    expected, _ = descend(make(0.1), PAIR, [clipped(grads) for grads in PAIR_GRADS[:10]])
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


@pytest.mark.parametrize(
    ("name", "value"), [("b1", 0.5), ("b2", 0.9), ("eps", 1.0), ("gain_power", 0.5)]
)
@over_optimizers
def test_other_injected_hyperparameters_too(make, name, value):
    # With decay: the chain without it is shorter, and its state has another structure.
    _, state = descend(make(0.1, weight_decay=1e-2), PAIR, PAIR_GRADS[:3])
    injected = optax.inject_hyperparams(make)(0.1, weight_decay=1e-2)
    injected_state = injected.init(PAIR)._replace(inner_state=state)
    before, _ = injected.update(PAIR_GRADS[3], injected_state, PAIR)
    injected_state.hyperparams[name] = jnp.float32(value)
    after, _ = injected.update(PAIR_GRADS[3], injected_state, PAIR)
    changed = make(0.1, weight_decay=1e-2, **{name: value})
    expected, _ = changed.update(PAIR_GRADS[3], state, PAIR)
    assert_trees_close(after, expected, 1e-4)  # float32 has 0.999 to 5 digits of 0.001
    assert not np.allclose(after["w"], before["w"], rtol=1e-2)


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

"""`sgdf.optax` follows the statement, for every setting, and has its properties in JAX's dtypes."""

import functools
import inspect
import itertools
import pickle

import numpy as np
import pytest
import torch

from reference import CASES, Reference
from sgdf import SGDF, FilterAdam, FilterAdamW
from sgdf.filter import Denominator, FilterSettings, moment_names

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

from jax_runs import (  # noqa: E402
    NOISE,
    NOISE32,
    PAIR,
    PAIR_GRADS,
    START,
    START32,
    STEPS,
    TOLERANCE,
    as_complex,
    assert_same_path,
    descend,
    gradient,
    optax_paths,
    precision,
)
from sgdf.optax import filter_adam, filter_adamw, scale_by_wiener_filter, sgdf  # noqa: E402

TWINS = {SGDF: sgdf, FilterAdam: filter_adam, FilterAdamW: filter_adamw}
RATE = {SGDF: 0.05, FilterAdam: 0.01, FilterAdamW: 0.01}
#: The cases of torch's optimizers, but for what optax has other transformations for.
SETTINGS = {
    twin: {
        str(settings): settings
        for cls, settings in [*CASES, (FilterAdam, {"gain_eps": 0.0})]
        if cls is twin
        and not {"maximize", "lr"} & settings.keys()
        and not (cls is FilterAdamW and "decoupled_weight_decay" in settings)
    }
    for twin in TWINS
}
GAINS = {
    "paper": {"gain_scale": 2.0, "gain_power": 1.0},
    "wiener": {"gain_scale": 1.0, "gain_power": 1.0},
    "release": {"gain_scale": 1.0, "gain_power": 0.5},
}
over_twins = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
over_settings = pytest.mark.parametrize(
    ("twin", "name"),
    [
        pytest.param(twin, name, id=f"{twin.__name__}-{name}")
        for twin, named in SETTINGS.items()
        for name in named
    ],
)
over_gains = pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)


def build(twin, rate=None, **settings):
    """The optimizer in JAX with settings of the one in torch."""
    if "betas" in settings:
        settings["b1"], settings["b2"] = settings.pop("betas")
    return TWINS[twin](RATE[twin] if rate is None else rate, **settings)


def statement_path(twin, lrs=None, **settings):
    """Parameters after every step, in float64 NumPy."""
    reference = Reference(twin([torch.zeros(1)], lr=RATE[twin], **settings), START)
    path = []
    for t in range(STEPS):
        reference.settings["lr"] = RATE[twin] if lrs is None else lrs[t]
        reference.step(gradient(reference.p, t, np.float64))
        path.append(reference.p)
    return np.stack(path)


# --- agreement with the statement ---------------------------------------------------------------


@functools.cache
def paths_of_all_settings(twin, dtype):
    with precision(dtype):
        optimizers = {name: build(twin, **given) for name, given in SETTINGS[twin].items()}
        return optax_paths(optimizers, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)
@over_settings
def test_it_follows_the_statement(twin, name, dtype):
    actual = paths_of_all_settings(twin, dtype)[name]["w"]
    expected = statement_path(twin, **SETTINGS[twin][name])
    assert_same_path(actual, expected.astype(dtype), dtype)


@over_twins
def test_settings_that_are_compared_differ(twin):
    """Otherwise the comparison above would say nothing about them."""
    paths = {name: statement_path(twin, **given) for name, given in SETTINGS[twin].items()}
    for (one, a), (other, b) in itertools.combinations(paths.items(), 2):
        assert np.abs(a - b).max() > 1000 * TOLERANCE[np.float64] * np.abs(b).max(), (one, other)


@over_twins
def test_learning_rate_schedules(twin):
    lr, decay = RATE[twin], {"weight_decay": 1e-2}
    schedules = {
        "cosine": optax.cosine_decay_schedule(lr, STEPS),
        "drops": optax.piecewise_constant_schedule(lr, {50: 0.1, 120: 0.5}),
    }
    with precision(np.float64):
        optimizers = {name: build(twin, rate, **decay) for name, rate in schedules.items()}
        actual = optax_paths(optimizers, np.float64)
        steps = jnp.arange(STEPS, dtype=jnp.int32)
        rates = {name: schedule(steps).tolist() for name, schedule in schedules.items()}
    for name, lrs in rates.items():
        assert lrs[0] > 1.5 * lrs[-1] > 0
        assert_same_path(actual[name]["w"], statement_path(twin, lrs, **decay), np.float64)


@over_twins
def test_a_mask_of_weight_decay_is_a_parameter_group(twin):
    masks = {"tree": {"w": True, "b": False}, "function": lambda p: {k: k == "w" for k in p}}
    with precision(np.float64):
        optimizers = {n: build(twin, weight_decay=0.01, mask=mask) for n, mask in masks.items()}
        actual = optax_paths(optimizers, np.float64, names=("w", "b"))
    decayed, plain = (statement_path(twin, weight_decay=decay) for decay in (0.01, 0.0))
    assert np.abs(decayed - plain).max() > 1e-3
    for paths in actual.values():
        assert_same_path(paths["w"], decayed, np.float64)
        assert_same_path(paths["b"], plain, np.float64)


INJECTED = {
    "K^0.5": {"gain_scale": 1.0, "gain_power": 0.5, "eps": 1e-5, "correction": False},
    "constant": {"gain_scale": 0.1, "gain_power": 0.0, "gain_eps": 1e-2},
}


@pytest.mark.parametrize("settings", INJECTED.values(), ids=INJECTED)
@over_twins
def test_injected_hyperparameters_follow_the_statement(twin, settings):
    """Every number is a traced value and none at its default; the flags stay Python values."""
    settings = settings | {"betas": (0.8, 0.99), "weight_decay": 0.01}
    if twin is FilterAdam:
        settings |= {"second_moment": "derived"}
    given = settings | {"b1": 0.8, "b2": 0.99}
    del given["betas"]
    injected = optax.inject_hyperparams(TWINS[twin])(RATE[twin], **given)
    with precision(np.float64):
        actual = optax_paths({"injected": injected}, np.float64)["injected"]["w"]
        names = injected.init({"w": jnp.asarray(START)}).hyperparams.keys()
    numbers = "learning_rate b1 b2 eps weight_decay gain_scale gain_power"
    assert names - {"gain_eps"} == set(numbers.split())
    assert_same_path(actual, statement_path(twin, **settings), np.float64)


@pytest.mark.skipif(
    not hasattr(optax.contrib, "split_real_and_imaginary"), reason="optax has no such wrapper"
)
@over_twins
def test_complex_parameters_agree_with_torch_when_split(twin):
    start = {"z": as_complex(START), "x": START32}
    grads = [{"z": as_complex(g), "x": g} for g in NOISE32[:20]]
    optimizer = optax.contrib.split_real_and_imaginary(build(twin, weight_decay=0.01))
    actual, _ = descend(optimizer, start, grads, jit=True)

    params = {name: torch.nn.Parameter(torch.tensor(p)) for name, p in start.items()}
    reference = twin(params.values(), RATE[twin], weight_decay=0.01)
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
    p = torch.nn.Parameter(torch.tensor(START).to(getattr(torch, low)))
    reference, grads = twin([p], RATE[twin]), []
    for g in NOISE[:10]:
        p.grad = torch.tensor(g).to(p.dtype)
        grads.append(jnp.asarray(p.grad.float().numpy(), low))
        reference.step()
    params, (moments, *_) = descend(build(twin), jnp.asarray(START, low), grads)
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


@pytest.mark.parametrize("power", [0, 0.5])
def test_without_gain_filter_adam_is_optaxs_adam(power):
    mask = {"w": True, "b": False}
    with precision(np.float64):
        optimizers = {
            "adam": optax.adam(0.01),
            "filter_adam": filter_adam(0.01, gain_scale=0, gain_power=power),
            "adamw": optax.adamw(0.01, weight_decay=0.01, mask=mask),
            "filter_adamw": filter_adamw(0.01, gain_scale=0, gain_power=power, mask=mask),
        }
        paths = optax_paths(optimizers, np.float64, names=("w", "b"))
    for name in ("adam", "adamw"):
        for leaf in ("w", "b"):
            assert_same_path(paths[f"filter_{name}"][leaf], paths[name][leaf], np.float64)
    assert np.abs(paths["adamw"]["w"] - paths["adamw"]["b"]).max() > 1e-3


# --- the state ---------------------------------------------------------------------------------


@over_settings
def test_state_has_the_moments_of_the_statement(twin, name):
    settings = SETTINGS[twin][name]
    power, kind = settings.get("gain_power", 1.0), settings.get("second_moment", "separate")
    names = moment_names(
        FilterSettings(gain_power=power), None if twin is SGDF else Denominator(kind)
    )
    optimizer = build(twin, **settings)
    for states in (optimizer.init(PAIR), descend(optimizer, PAIR, PAIR_GRADS[:1])[1]):
        moments = next(s for s in states if hasattr(s, "exp_avg"))
        kept = [name for name in moments._fields[1:] if getattr(moments, name) is not None]
        assert tuple(kept) == names
        assert all(getattr(moments, name).keys() == PAIR.keys() for name in kept)


def test_states_of_the_papers_forms_are_as_they_were():
    """What users have saved: names, order and number of the leaves, and names in pickles."""
    for make, fields in ((sgdf, "exp_avg exp_var"), (filter_adam, "exp_avg exp_var exp_avg_sq")):
        moments, rate = make(0.1).init(PAIR)
        assert moments._fields == ("count", *fields.split())
        assert rate == optax.EmptyState()
        leaves = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(moments)]
        assert leaves == [".count", *(f".{f}['{n}']" for f in fields.split() for n in "bw")]
        name = type(moments).__name__.encode()
        assert b"csgdf.optax\n" + name in pickle.dumps(moments, protocol=0)
        assert len(sgdf(0.1, weight_decay=0.1).init(PAIR)) == 3


@over_twins
def test_defaults_are_those_of_torch(twin):
    theirs = inspect.signature(twin).parameters
    ours = inspect.signature(TWINS[twin]).parameters
    shared = ours.keys() & theirs.keys()
    assert {"eps", "weight_decay", "gain_scale", "gain_power", "correction"} <= shared
    forms = {} if twin is SGDF else {"second_moment": twin.default_second_moment}
    expected = {n: theirs[n].default for n in shared} | forms  # a checkpoint decides it, in torch
    assert {n: ours[n].default for n in shared} == expected
    assert (ours["b1"].default, ours["b2"].default) == theirs["betas"].default

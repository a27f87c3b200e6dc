"""Forms of the filter in `sgdf.optax`: constant gains, second moments from m and s, gain_eps."""

import functools
import inspect
import itertools
import pickle

import numpy as np
import pytest

from sgdf import SGDF, FilterAdam, FilterAdamW
from sgdf.filter import (
    DEFAULT_FORM,
    FLOAT32,
    Denominator,
    Filter,
    FilterSettings,
    largest_gradient,
    moment_names,
)
from sgdf.optim.settings import filter_settings

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

from jax_runs import (  # noqa: E402
    NOISE32,
    PAIR,
    PAIR_GRADS,
    START,
    STEPS,
    TOLERANCE,
    assert_same_path,
    assert_trees_close,
    assert_trees_identical,
    descend,
    gradient,
    optax_paths,
    precision,
)
from sgdf.optax import filter_adam, filter_adamw, scale_by_wiener_filter, sgdf  # noqa: E402

CONSTANT = {"gain_scale": 0.05, "gain_power": 0}
NESTEROV = {"gain_scale": 0.1, "gain_power": 0, "bias_correction": False}
FORMS = {
    "constant": CONSTANT,
    "nesterov": NESTEROV,
    "biased": {"bias_correction": False},
    "gain_eps": {"gain_eps": 1e-2},
    "gain_eps=0": {"gain_eps": 0.0},
    "decayed": {"gain_eps": 1e-2, "weight_decay": 0.1},
}
ADAM_FORMS = FORMS | {
    "derived": {"second_moment": "derived"},
    "derived, constant": {"second_moment": "derived", **CONSTANT},
    "derived, biased": {"second_moment": "derived", "bias_correction": False},
    "derived, gain_eps": {"second_moment": "derived", "gain_eps": 1e-2},
    "derived, betas": {"second_moment": "derived", "b1": 0.95, "b2": 0.95**2},
    "fluctuation": {"second_moment": "fluctuation"},
    "fluctuation, nesterov": {"second_moment": "fluctuation", **NESTEROV},
}
FORMS_OF = {sgdf: FORMS, filter_adam: ADAM_FORMS, filter_adamw: ADAM_FORMS}
RATE = {sgdf: 0.05, filter_adam: 0.01, filter_adamw: 0.01}
CASES = [
    pytest.param(make, form, id=f"{make.__name__}-{form}")
    for make, forms in FORMS_OF.items()
    for form in forms
]
over_forms = pytest.mark.parametrize(("make", "form"), CASES)


# --- agreement with the statement --------------------------------------------------------------


def setting(make, form, name):
    default = inspect.signature(make).parameters.get(name)
    return FORMS_OF[make][form].get(name, default and default.default)


def statement_path(make, form):
    """Parameters after every step, in float64 NumPy by the functions of `sgdf.filter`."""
    get = functools.partial(setting, make, form)
    names = ["eps", "gain_scale", "gain_power", "gain_eps", "correction", "bias_correction"]
    betas, kind = (get("b1"), get("b2")), get("second_moment") or "separate"
    group = {name: get(name) for name in names} | {"betas": betas, "second_moment": kind}
    decay, decoupled = get("weight_decay"), make is filter_adamw
    direction = Filter(
        filter_settings(group), None if make is sgdf else Denominator(kind, get("eps"))
    )
    p, path = START.copy(), []
    for t in range(STEPS):
        g = gradient(p, t, np.float64) + (0 if decoupled else decay * p)
        p = p - RATE[make] * (direction(g) + (decay * p if decoupled else 0))
        path.append(p)
    return np.stack(path)


@functools.cache
def paths_of_all_forms(make, dtype):
    with precision(dtype):
        optimizers = {form: make(RATE[make], **options) for form, options in FORMS_OF[make].items()}
        return optax_paths(optimizers, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)
@over_forms
def test_agrees_with_the_statement(make, form, dtype):
    actual = paths_of_all_forms(make, dtype)[form]["w"]
    assert_same_path(actual, statement_path(make, form).astype(dtype), dtype)


@pytest.mark.parametrize("make", FORMS_OF, ids=lambda make: make.__name__)
def test_forms_that_are_compared_differ(make):
    paths = {form: statement_path(make, form) for form in FORMS_OF[make]}
    for one, other in itertools.combinations(paths.values(), 2):
        assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize(
    ("make", "reference"), [(sgdf, SGDF), (filter_adam, FilterAdam), (filter_adamw, FilterAdamW)]
)
def test_defaults_are_those_of_torch(make, reference):
    theirs = inspect.signature(reference).parameters
    ours = inspect.signature(make).parameters
    shared = ours.keys() & theirs.keys()
    assert {"eps", "weight_decay", "gain_scale", "gain_power", "correction"} <= shared
    forms = {} if make is sgdf else {"second_moment": reference.default_second_moment}
    expected = {n: theirs[n].default for n in shared} | forms  # a checkpoint decides it, in torch
    assert {n: ours[n].default for n in shared} == expected
    assert (ours["b1"].default, ours["b2"].default) == theirs["betas"].default


# --- optimizers that the forms contain ---------------------------------------------------------


def test_constant_gain_of_one_minus_b1_is_nesterovs_momentum():
    with precision(np.float64):
        ours = sgdf(0.05, **NESTEROV, weight_decay=0.1)
        theirs = optax.chain(
            optax.add_decayed_weights(0.1), optax.sgd(0.05 * (1 - 0.9), 0.9, nesterov=True)
        )
        paths = optax_paths({"ours": ours, "theirs": theirs}, np.float64)
    assert_same_path(paths["ours"]["w"], paths["theirs"]["w"], np.float64)


@pytest.mark.parametrize("power", [0, 0.5, 1])
def test_without_gain_filter_adam_is_adam(power):
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


def test_filter_adamw_is_filter_adam_with_decoupled_decay():
    form = DEFAULT_FORM._asdict()
    adam = filter_adam(0.01, weight_decay=0.01, decoupled_weight_decay=True, **form)
    grads = PAIR_GRADS[:5]
    assert_trees_identical(descend(filter_adamw(0.01), PAIR, grads), descend(adam, PAIR, grads))


def test_derived_second_moment_has_the_mean_of_squared_gradients():
    """At every step, in stationary noise; only the fluctuation has it without the mean."""
    grads = 0.5 + np.random.default_rng(1).normal(size=(30, 100_000)).astype(np.float32)
    means = {}
    for kind in ("separate", "derived", "fluctuation"):
        # The step is m^ / sqrt(v^), and m^ is known.
        adam = filter_adam(-1.0, gain_scale=0, gain_power=0, eps=0, second_moment=kind)
        state = adam.init(grads[0])
        step = jax.jit(adam.update)
        for t, g in enumerate(grads, start=1):
            update, state = step(g, state)
            m_hat = np.asarray(state[0].exp_avg) / (1 - 0.9**t)
            means.setdefault(kind, []).append(np.mean((m_hat / np.asarray(update)) ** 2.0))
    np.testing.assert_allclose(means["separate"], 1.25, rtol=0.02)
    np.testing.assert_allclose(means["derived"], 1.25, rtol=0.02)
    assert 0.85 < means["fluctuation"][-1] < 1.0


# --- extreme gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("before", [0, 3])
@over_forms
def test_a_finite_gradient_never_gives_nan(make, form, before, correction):
    spike = np.array([3e18, 3e19, -2e20, 1e21, -1e30, 1e38], np.float32)
    usual = NOISE32[:, :6]
    optimizer = make(RATE[make], **(FORMS_OF[make][form] | {"correction": correction}))
    params, state = jnp.zeros(6), optimizer.init(jnp.zeros(6))
    for g in [*usual[:before], spike, *usual[before:8]]:
        updates, state = optimizer.update(jnp.asarray(g), state, params)
        assert jnp.isfinite(updates).all()
        moments = next(s for s in state if hasattr(s, "exp_avg"))
        assert jnp.isfinite(moments.exp_avg).all()
        if moments.exp_var is not None:
            assert moments.exp_var.max() <= 2.0**126
    if moments.exp_var is not None:
        largest = largest_gradient(0.999, FLOAT32)
        assert moments.exp_var[-1] > 1e-4 * largest**2  # of the clipped gradient; it decays


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(scale_by_wiener_filter, eps=0),
        functools.partial(scale_by_wiener_filter, gain_eps=0),
        functools.partial(filter_adam, 0.1, gain_eps=0),
        functools.partial(filter_adam, 0.1, second_moment="derived"),
    ],
)
def test_eps_of_the_gain_may_be_zero(make):
    optimizer = make()
    zeros = jnp.zeros(3)
    state = optimizer.init(zeros)
    for g in (zeros, zeros, jnp.array([0.0, 1.0, 1e-15])):
        updates, state = optimizer.update(g, state)
        assert (updates[:1] == 0).all()
        assert jnp.isfinite(updates).all()


def test_with_gain_eps_zero_the_magnitude_of_gradients_does_not_matter():
    """With eps = 1e-8 the gain is closed at gradients of 2e-9."""
    scale = 2.0**-29
    noisy = [{"w": g["w"][:6], "b": g["b"][-6:]} for g in PAIR_GRADS[:5]]
    filtered, closed = scale_by_wiener_filter(gain_eps=0), scale_by_wiener_filter()
    states = [transformation.init(noisy[0]) for transformation in (filtered, filtered, closed)]
    for grads in noisy:
        small = jax.tree.map(lambda g: g * scale, grads)
        (large, states[0]), (tiny, states[1]), (other, states[2]) = (
            filtered.update(grads, states[0]),
            filtered.update(small, states[1]),
            closed.update(small, states[2]),
        )
    assert_trees_close(jax.tree.map(lambda u: u / scale, tiny), large)
    assert not np.allclose(other["w"] / scale, large["w"], rtol=1e-2)


# --- the state ---------------------------------------------------------------------------------


@over_forms
def test_state_has_the_moments_of_the_statement(make, form):
    options = FORMS_OF[make][form]
    power, kind = options.get("gain_power", 1.0), options.get("second_moment", "separate")
    names = moment_names(
        FilterSettings(gain_power=power), None if make is sgdf else Denominator(kind)
    )
    state = make(0.1, **options).init(PAIR)
    for states in (state, descend(make(0.1, **options), PAIR, PAIR_GRADS[:1])[1]):
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
    if isinstance(value, str) or name == "weight_decay":
        return
    injected = optax.inject_hyperparams(make)(0.1, **wrong)
    with pytest.raises(ValueError, match=f"Invalid {name} value"):
        injected.init(PAIR)


@pytest.mark.parametrize("make", [filter_adam, filter_adamw])
def test_impossible_second_moments_are_refused(make):
    with pytest.raises(ValueError, match=r"'separate', 'derived', 'fluctuation'\): 'deriven'"):
        make(0.1, second_moment="deriven")
    with pytest.raises(ValueError, match="second_moment='derived' needs a b1 above 0"):
        make(0.1, b1=0, second_moment="derived")
    with pytest.raises(ValueError, match="second_moment='fluctuation' needs a b1 above 0"):
        optax.inject_hyperparams(make)(0.1, b1=0.0, second_moment="fluctuation").init(PAIR)
    make(0.1, b1=0, second_moment="separate")


# --- JAX's transformations and optax's wrappers ------------------------------------------------


@pytest.mark.parametrize("form", ["derived, betas", "derived, gain_eps", "fluctuation, nesterov"])
def test_injected_hyperparameters_agree_with_the_statement(form):
    """Betas and eps as traced values; a constant gain is then a power of K, with exponent 0."""
    options = ADAM_FORMS[form]
    injected = optax.inject_hyperparams(filter_adam)(RATE[filter_adam], **options)
    with precision(np.float64):
        actual = optax_paths({"injected": injected}, np.float64)["injected"]["w"]
        numbers = injected.init({"w": jnp.asarray(START)}).hyperparams.keys()
    assert {"b1", "b2", "eps", "gain_power"} <= numbers
    assert ("gain_eps" in numbers) == ("gain_eps" in options)
    assert_same_path(actual, statement_path(filter_adam, form), np.float64)


@pytest.mark.parametrize(
    ("name", "value"), [("b1", 0.5), ("b2", 0.9), ("gain_eps", 1.0), ("gain_scale", 0.5)]
)
def test_injected_hyperparameters_are_changed_in_the_state(name, value):
    options = {"second_moment": "derived", "gain_eps": 1e-4}
    _, state = descend(filter_adamw(0.1, **options), PAIR, PAIR_GRADS[:3])
    injected = optax.inject_hyperparams(filter_adamw)(0.1, **options)
    injected_state = injected.init(PAIR)._replace(inner_state=state)
    update = jax.jit(injected.update)
    before, _ = update(PAIR_GRADS[3], injected_state, PAIR)
    injected_state.hyperparams[name] = jnp.float32(value)
    after, _ = update(PAIR_GRADS[3], injected_state, PAIR)
    changed = filter_adamw(0.1, **(options | {name: value}))
    expected, _ = changed.update(PAIR_GRADS[3], state, PAIR)
    assert_trees_close(after, expected, 1e-4)  # float32 has 0.999 to 5 digits of 0.001
    assert not np.allclose(after["w"], before["w"], rtol=1e-2)


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

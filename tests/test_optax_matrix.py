"""`sgdf.optax.filter_muon` and `filter_soap` are the torch optimizers, and follow optax's rules."""

import inspect

import numpy as np
import pytest
import torch

from sgdf import FilterMuon, FilterSOAP

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

from jax_runs import precision, through_pickle  # noqa: E402
from sgdf.optax import filter_muon, filter_soap  # noqa: E402

#: Sides for which one gradient has full rank: else rounding would choose the first basis.
SHAPES = {"a": (5, 8), "b": (6, 6), "c": (7,), "d": (6, 6), "e": (8, 5), "f": (6, 6)}
SQUARE = {"eigenbasis": True, "max_basis_dim": 6}
FORMS = {
    "muon": (FilterMuon, filter_muon, {}),
    "muon, K": (FilterMuon, filter_muon, {"gain_scale": 2.0, "gain_power": 0.5}),
    "muon, from the start": (
        FilterMuon, filter_muon,
        {"slow_weight": 0.0, "bias_correction": False, "adjust_lr_fn": "original", "ns_steps": 4},
    ),
    "muon, eigenbasis": (FilterMuon, filter_muon, {**SQUARE, "basis_interval": 2}),
    "muon, eigenbasis, K": (
        FilterMuon, filter_muon,
        {**SQUARE, "gain_scale": 2.0, "gain_power": 1.0, "turn_moments": False},
    ),
    "soap": (FilterSOAP, filter_soap, {"max_basis_dim": 6, "basis_interval": 3}),
    "soap, no filter": (
        FilterSOAP, filter_soap,
        {"max_basis_dim": 6, "gain_scale": 0.0, "slow_weight": 0.0, "basis_interval": 1},
    ),
}  # fmt: skip
BY_FORM = pytest.mark.parametrize("form", FORMS)
STEPS = 25


def numbers(seed, shape):
    return np.random.default_rng(seed).normal(size=shape)


def start():
    return {name: numbers(k, shape) for k, (name, shape) in enumerate(SHAPES.items())}


def grads(t):
    return {
        name: 0.3 * numbers(99 + k, shape) + numbers(1000 * t + k, shape)
        for k, (name, shape) in enumerate(SHAPES.items())
    }


def torch_path(form):
    cls, _, options = FORMS[form]
    params = {name: torch.tensor(p, requires_grad=True) for name, p in start().items()}
    optimizer = cls(params.values(), lr=0.02, weight_decay=0.1, aux_lr=0.05, **options)
    path = []
    for t in range(STEPS):
        for name, g in grads(t).items():
            params[name].grad = torch.tensor(g)
        optimizer.step()
        path.append({name: p.detach().numpy().copy() for name, p in params.items()})
    return path


@BY_FORM
def test_the_twin_is_the_torch_optimizer(form):
    _, twin, options = FORMS[form]
    wanted = torch_path(form)
    with precision(np.float64):
        optimizer = twin(0.02, weight_decay=0.1, aux_learning_rate=0.05, **options)
        params = jax.tree.map(jnp.asarray, start())
        state, step = optimizer.init(params), jax.jit(optimizer.update)
        for t in range(STEPS):
            updates, state = step(jax.tree.map(jnp.asarray, grads(t)), state, params)
            params = optax.apply_updates(params, updates)
            for name, p in params.items():
                np.testing.assert_allclose(p, wanted[t][name], rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("names", "turns"), [("acef", [0, 1, 2, 3]), ("bdg", [0, 1, 2])])
def test_matrices_or_stacks_take_the_turns_of_torch(names, turns):
    """In a tree with both kinds, each kind takes turns by itself."""
    shapes = {"a": (6, 6), "b": (3, 6, 6), "c": (6, 6), "d": (2, 5, 5), "e": (6, 6),
              "f": (2, 3, 6), "g": (2, 4, 4)}  # fmt: skip
    shapes = {name: shapes[name] for name in names}
    kinds = {name: "stacked" if name in "bdg" else "matrix" for name in shapes}
    options = {"basis_interval": 4, "max_basis_dim": 6}
    first = {name: numbers(k, shape) for k, (name, shape) in enumerate(shapes.items())}
    # A matrix of more dimensions is all but the last by the last here, the other way in torch.
    ours = {name: torch.tensor(p, requires_grad=True) for name, p in first.items()}
    if "f" in ours:
        ours["f"] = torch.tensor(first["f"].reshape(6, 6), requires_grad=True)
    groups = [{"params": [ours[name]], "matrices": "stacked" if kind == "stacked" else True}
              for name, kind in kinds.items()]  # fmt: skip
    optimizer = FilterSOAP(groups, lr=0.02, **options)
    assert sorted(optimizer._turns[p] for p in ours.values()) == turns
    with precision(np.float64):
        twin = filter_soap(0.02, kinds=kinds, **options)
        params = jax.tree.map(jnp.asarray, first)
        state, step = twin.init(params), jax.jit(twin.update)
        for t in range(10):
            g = {name: numbers(100 * t + k, shapes[name]) for k, name in enumerate(shapes)}
            updates, state = step(jax.tree.map(jnp.asarray, g), state, params)
            params = optax.apply_updates(params, updates)
            for name, p in ours.items():
                p.grad = torch.tensor(g[name].reshape(p.shape))
            optimizer.step()
            for name, p in ours.items():
                found = np.asarray(params[name]).reshape(p.shape)
                np.testing.assert_allclose(
                    found, p.detach(), rtol=1e-7, atol=1e-9, err_msg=f"{t} {name}"
                )


@pytest.mark.parametrize("form", ["muon", "soap"])
def test_the_signatures_agree(form):
    cls, twin, _ = FORMS[form]
    ours = inspect.signature(cls).parameters
    theirs = inspect.signature(twin).parameters
    for name, parameter in theirs.items():
        if name in ours:
            assert parameter.default == ours[name].default, name
    assert (theirs["b1"].default, theirs["b2"].default) == ours["betas"].default
    assert (theirs["aux_b1"].default, theirs["aux_b2"].default) == ours["aux_betas"].default
    only_torch = {"maximize", "foreach", "fused", "capturable", "state_dtype", "rounding_seed",
                  "stochastic_rounding", "process_group", "params", "lr", "betas", "aux_lr",
                  "aux_betas"}  # fmt: skip
    assert set(ours) - set(theirs) == only_torch & set(ours)


@pytest.mark.parametrize("form", ["muon, K", "muon, eigenbasis", "soap"])
def test_a_state_survives_a_pickle_and_a_scan(form):
    _, twin, options = FORMS[form]
    optimizer = twin(0.02, **options)
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start())
    state = optimizer.init(params)

    def step(carry, t):
        params, state = carry
        key = jax.random.key(t)
        g = jax.tree.map(lambda p: jax.random.normal(key, p.shape) + 0.1 * p, params)
        updates, state = optimizer.update(g, state, params)
        return (optax.apply_updates(params, updates), state), None

    run = jax.jit(lambda carry, times: jax.lax.scan(step, carry, times)[0])  # compiled once
    half = run((params, state), jnp.arange(3))
    whole = run(half, jnp.arange(3, 6))
    rest = run((half[0], through_pickle(half[1])), jnp.arange(3, 6))
    for name, p in whole[0].items():
        np.testing.assert_array_equal(p, rest[0][name])
        assert bool(jnp.isfinite(p).all())


def test_kinds_name_matrices_and_stacks():
    params = {
        "words": jnp.ones((7, 4)),
        "experts": jnp.ones((3, 4, 5)),
        "conv": jnp.ones((2, 4, 5)),
    }
    kinds = {"words": "rest", "experts": "stacked", "conv": "matrix"}
    optimizer = filter_muon(1.0, weight_decay=0.0, kinds=kinds)
    g = jax.tree.map(lambda p: jnp.asarray(numbers(0, p.shape), jnp.float32), params)
    updates, _ = optimizer.update(g, optimizer.init(params), params)
    scale = 0.2 * np.sqrt(5)
    for k in range(3):
        values = np.linalg.svd(np.asarray(updates["experts"][k]) / scale, compute_uv=False)
        assert 0.3 < values.min() <= values.max() < 1.3
    flat = np.asarray(updates["conv"]).reshape(8, 5) / (0.2 * np.sqrt(8))
    assert np.linalg.svd(flat, compute_uv=False).min() > 0.3
    np.testing.assert_allclose(np.abs(updates["words"]), 1.0, rtol=1e-3)  # Adam's first step


def test_bfloat16_parameters_keep_a_float32_state():
    params = {"w": jnp.ones((4, 6), jnp.bfloat16)}
    optimizer = filter_soap(0.1)
    state = optimizer.init(params)
    for _ in range(3):
        updates, state = optimizer.update(params, state, params)
    assert updates["w"].dtype == jnp.bfloat16
    wide = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 2]
    assert wide
    assert all(leaf.dtype == jnp.float32 for leaf in wide)


def test_update_needs_the_parameters():
    optimizer = filter_muon(0.1)
    params = {"w": jnp.ones((4, 6))}
    with pytest.raises(ValueError, match="need the parameters"):
        optimizer.update(params, optimizer.init(params))
    with pytest.raises(ValueError, match="Invalid adjust_lr_fn"):
        filter_muon(0.1, adjust_lr_fn="rms")


IMPOSSIBLE = [
    *({name: value} for name in ("b1", "b2", "slow_beta", "basis_decay") for value in (1.0, -0.1)),
    *({name: -1.0} for name in ("eps", "gain_eps", "gain_scale", "gain_power", "weight_decay")),
    *({"slow_weight": value} for value in (-0.1, 2.0, float("nan"))),
    *({name: value} for name in ("basis_interval", "max_basis_dim") for value in (0, 1.5)),
    {"b1": "0.9"},
    {"ns_steps": 0},
    {"aux_b2": 1.0},
]


@pytest.mark.parametrize("wrong", IMPOSSIBLE, ids=str)
@pytest.mark.parametrize("make", [filter_muon, filter_soap])
def test_impossible_settings_are_refused(make, wrong):
    """They would be NaN in silence, or steps that mean nothing."""
    (name,) = wrong
    if make is filter_soap and name == "ns_steps":
        return
    with pytest.raises(ValueError, match=f"Invalid {name.removeprefix('aux_')} value"):
        make(0.1, **wrong)

"""A noisy problem, runs of optax optimizers on it, and comparisons of trees."""

import io
import pickle

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

# Decoupled decay needs this in float32: torch rounds 1 - lr * decay, optax never forms it.
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}
# For programs that XLA compiled differently; in bfloat16, the precision of the parameters.
ROUNDING = {"float32": 1e-5, "bfloat16": 1e-2}


def precision(dtype):
    """JAX has float64 only if it is enabled."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(dtype is np.float64)
    from jax.experimental import enable_x64  # its place in older versions

    return enable_x64(dtype is np.float64)


# --- a problem for both frameworks -------------------------------------------------------------

# The first elements are noisy quadratics: their gradients depend on the parameters, so that two
# optimizers which differ drift apart. The rest is gradients from far below sqrt(eps) to far above
# it, with a trend and without.
STEPS = 200
SIGNAL = np.geomspace(1e-6, 3.0, 7)
CURVATURE = np.concatenate([np.geomspace(0.05, 1.0, 6), np.zeros(14)])
SPREAD = np.concatenate([np.ones(6), SIGNAL, SIGNAL])
TREND = np.concatenate([np.zeros(6), SIGNAL, np.zeros(7)])
START = np.linspace(-2.0, 2.0, 20)
NOISE = TREND + SPREAD * np.random.default_rng(0).normal(size=(STEPS, 20))
START32, NOISE32 = START.astype(np.float32), NOISE.astype(np.float32)


def gradient(p, t, dtype):
    return (CURVATURE * p + NOISE[t]).astype(dtype)


def optax_paths(optimizers, dtype, names=("w",)):
    """The same for several optimizers in one compilation, which takes most of the time."""

    @jax.jit
    def step(grads, states, params):
        new = {}
        for key, optimizer in optimizers.items():
            updates, state = optimizer.update(grads[key], states[key], params[key])
            new[key] = optax.apply_updates(params[key], updates), state
        return {key: p for key, (p, _) in new.items()}, {key: s for key, (_, s) in new.items()}

    params = {key: {name: jnp.asarray(START, dtype) for name in names} for key in optimizers}
    states = {key: optimizer.init(params[key]) for key, optimizer in optimizers.items()}
    paths = []
    for t in range(STEPS):
        grads = jax.tree.map(lambda p, t=t: gradient(np.asarray(p), t, dtype), params)
        params, states = step(grads, states, params)
        paths.append(params)
    return jax.tree.map(lambda *points: np.stack(points), *paths)


def assert_same_path(actual, expected, dtype):
    assert actual.dtype == expected.dtype == dtype
    assert actual.shape == expected.shape == (STEPS, START.size)
    # Relative to the largest value of the path, since an element may cross zero.
    error = np.abs(actual - expected).max(axis=0) / np.abs(expected).max(axis=0)
    np.testing.assert_array_less(error, TOLERANCE[dtype])


def as_complex(values):
    return (values[::2] + 1j * values[1::2]).astype(np.complex64)


def stepper(optimizer):
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def descend(optimizer, params, grads, jit=False):
    """Parameters and state after one step for each of the gradients.

    Without jit, as a few steps do not repay compiling a program of their own.
    """
    step = jax.jit(stepper(optimizer)) if jit else stepper(optimizer)
    params = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(params)
    for g in grads:
        params, state = step(params, state, jax.tree.map(jnp.asarray, g))
    return params, state


def assert_trees_close(actual, expected, tolerance=1e-5):
    """Compare with a tolerance relative to the largest value of each leaf."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert jnp.asarray(ours).dtype == jnp.asarray(theirs).dtype
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        atol = tolerance * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, equal_nan=False)


def assert_trees_identical(actual, expected):
    assert_trees_close(actual, expected, tolerance=0)


def scanned(optimizer):
    def run(params, grads):
        def step(carry, g):
            return stepper(optimizer)(*carry, g), None

        end, _ = jax.lax.scan(step, (params, optimizer.init(params)), grads)
        return end

    return run


CONSTANT = {"gain_scale": 0.05, "gain_power": 0}
NESTEROV = {"gain_scale": 0.1, "gain_power": 0, "bias_correction": False}

# --- two parameters ------------------------------------------------------------------------------

PAIR = {"w": START32, "b": START32[::-1].copy()}
PAIR_GRADS = [{"w": g, "b": g[::-1].copy()} for g in NOISE32]


# --- checkpoints -------------------------------------------------------------------------------


def through_pickle(tree):
    return pickle.loads(pickle.dumps(tree))


def through_arrays(tree):
    leaves, structure = jax.tree.flatten(tree)
    file = io.BytesIO()
    np.savez(file, *leaves)
    file.seek(0)
    return structure.unflatten(np.load(file).values())

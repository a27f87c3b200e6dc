"""`sgdf.optax`: the torch optimizers' twin, and a well-behaved optax transformation."""

import numpy as np
import pytest
import torch

from sgdf import SGDF, FilterAdam

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

from sgdf.optax import filter_adam, sgdf  # noqa: E402

STEPS = 200
TOLERANCE = {np.float32: 2e-6, np.float64: 1e-12}
GAINS = {"paper": (2.0, 1.0), "wiener": (1.0, 1.0), "release": (1.0, 0.5)}
DECAYS = {
    "no decay": {},
    "coupled": {"weight_decay": 1e-2},
    "decoupled": {"weight_decay": 1e-2, "decoupled_weight_decay": True},
}
#: (torch, optax, learning rate)
TWINS = {"sgdf": (SGDF, sgdf, 0.05), "filter_adam": (FilterAdam, filter_adam, 0.01)}
OPTIMIZERS = {"sgdf": lambda: sgdf(0.1), "filter_adam": lambda: filter_adam(0.1)}

twins = pytest.mark.parametrize(("torch_class", "make", "lr"), TWINS.values(), ids=TWINS.keys())
optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)


def precision(dtype):
    """float64 exists in JAX only where it is switched on."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(dtype is np.float64)
    from jax.experimental import enable_x64  # its name in older versions

    return enable_x64(dtype is np.float64)


# --- a problem that both frameworks are given --------------------------------------------------

# "bowl" feeds its parameters back into its gradients, so that two optimizers which differ drift
# apart; "signal" gets gradients from far below sqrt(eps) to far above it, with and without trend.
START = {"bowl": np.linspace(-2.0, 2.0, 6), "signal": np.ones((2, 7))}
CURVATURE = np.geomspace(0.05, 1.0, 6)
SCALE = np.geomspace(1e-6, 3.0, 7)


def draw_noise(seed=0, steps=STEPS):
    rng = np.random.default_rng(seed)
    trend = np.array([[0.0], [1.0]])
    return [
        {
            "bowl": rng.normal(size=START["bowl"].shape),
            "signal": SCALE * (trend + rng.normal(size=START["signal"].shape)),
        }
        for _ in range(steps)
    ]


def gradients(params, noise, dtype):
    grads = {"bowl": CURVATURE * params["bowl"] + noise["bowl"], "signal": noise["signal"]}
    return {name: grad.astype(dtype) for name, grad in grads.items()}


def torch_trajectory(build, noise, dtype, lrs=None):
    """Parameters after every step; `build` makes the optimizer from a dict of parameters."""
    params = {name: torch.nn.Parameter(torch.tensor(p.astype(dtype))) for name, p in START.items()}
    optimizer, trajectory = build(params), []
    for t, draw in enumerate(noise):
        grads = gradients({n: p.detach().numpy() for n, p in params.items()}, draw, dtype)
        for name, p in params.items():
            p.grad = torch.tensor(grads[name])
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if lrs is None else lrs[t]
        optimizer.step()
        trajectory.append({name: p.detach().numpy().copy() for name, p in params.items()})
    return trajectory


def optax_trajectory(optimizer, noise, dtype):
    @jax.jit
    def step(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params, trajectory = {name: jnp.asarray(p.astype(dtype)) for name, p in START.items()}, []
    state = optimizer.init(params)
    for draw in noise:
        seen = {name: np.asarray(p) for name, p in params.items()}
        params, state = step(gradients(seen, draw, dtype), state, params)
        trajectory.append({name: np.asarray(p) for name, p in params.items()})
    return trajectory


def assert_same_trajectory(actual, expected, dtype, tolerance=None):
    assert len(actual) == len(expected)
    for name in START:
        ours, theirs = (np.stack([p[name] for p in path]) for path in (actual, expected))
        assert ours.dtype == theirs.dtype == dtype
        assert not np.allclose(theirs[-1], START[name], rtol=0, atol=1e-6), "nothing moved"
        # Relative to the element's largest value on the way, as the noise takes it through zero.
        size = np.abs(theirs).max(axis=0)
        np.testing.assert_array_less(
            np.abs(ours - theirs) / size, tolerance or TOLERANCE[dtype], err_msg=name
        )


# --- agreement with torch ----------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS.keys())
@pytest.mark.parametrize("correction", [True, False], ids=["corrected", "uncorrected"])
@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS.keys())
@twins
def test_agrees_with_torch(torch_class, make, lr, gain, correction, decay, dtype):
    settings = {"gain_scale": gain[0], "gain_power": gain[1], "correction": correction, **decay}
    noise = draw_noise()
    expected = torch_trajectory(lambda p: torch_class(p.values(), lr, **settings), noise, dtype)
    with precision(dtype):
        actual = optax_trajectory(make(lr, **settings), noise, dtype)
    assert_same_trajectory(actual, expected, dtype)

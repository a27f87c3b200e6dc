"""The algorithm itself: against an independent statement of it, and the properties it promises."""

import math
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sgdf.filter import (
    FLOAT32,
    FLOAT64,
    Denominator,
    Filter,
    FilterSettings,
    bias_corrections,
    largest_gradient,
    one_minus_power,
    second_moment,
    second_moment_weights,
    update_moments,
    wiener_filter,
    wiener_gain,
)
from sgdf.optim.settings import filter_settings

GAINS = {"paper, 2K": (2.0, 1.0), "Wiener, K": (1.0, 1.0), "2026 release, K^0.5": (1.0, 0.5)}


def oracle(gradients, b1, b2, eps, scale, power, correction):
    """Algorithm 1 one scalar at a time, from sums rather than recursions."""
    estimates = np.empty_like(gradients)
    for i in np.ndindex(gradients.shape[1:]):
        g = [float(x) for x in gradients[(slice(None), *i)]]
        m = [
            (1 - b1) * math.fsum(b1 ** (t - k) * g[k] for k in range(t + 1)) for t in range(len(g))
        ]
        for t in range(len(g)):
            n = t + 1
            s = (1 - b2) * math.fsum(b2 ** (t - k) * (g[k] - m[k]) ** 2 for k in range(n))
            m_hat = m[t] / (1 - b1**n)
            s_hat = s / (1 - b2**n)
            if correction:
                s_hat *= (1 - b1) * (1 - b1 ** (2 * n)) / (1 + b1)
            gain = s_hat / (s_hat + (g[t] - m_hat) ** 2 + eps)
            estimates[(t, *i)] = m_hat + scale * gain**power * (g[t] - m_hat)
    return estimates


def run_filter(gradients, b1=0.9, b2=0.999, eps=1e-8, scale=2.0, power=1.0, correction=True):
    m, s = np.zeros_like(gradients[0]), np.zeros_like(gradients[0])
    estimates = []
    for t, g in enumerate(gradients, start=1):
        g_hat, m, s = wiener_filter(
            g,
            m,
            s,
            bias_corrections(t, b1, b2, correction),
            beta1=b1,
            beta2=b2,
            eps=eps,
            gain_scale=scale,
            gain_power=power,
        )
        estimates.append(g_hat)
    return np.array(estimates)


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize(("scale", "power"), GAINS.values(), ids=GAINS.keys())
def test_every_published_gain_matches_the_oracle(scale, power, correction):
    gradients = np.random.default_rng(0).normal(0.3, 1.0, (60, 2, 2))
    for b1, b2, eps in [(0.9, 0.999, 1e-8), (0.5, 0.9, 1e-2), (0.0, 0.0, 1e-8)]:
        args = (b1, b2, eps, scale, power, correction)
        # The 0.999 sums differ from the recursion only by rounding.
        np.testing.assert_allclose(
            run_filter(gradients, *args), oracle(gradients, *args), rtol=1e-9, atol=1e-12
        )


def test_one_step_by_hand():
    # b1 = 1/2, b2 = 1/2, g1 = 4, g2 = 0: every quantity is a short fraction.
    first = wiener_filter(
        4.0, 0.0, 0.0, bias_corrections(1, 0.5, 0.5), beta1=0.5, beta2=0.5, eps=0.25
    )
    assert first == pytest.approx((4.0, 2.0, 2.0), rel=1e-14)
    g_hat, m, s = wiener_filter(
        0.0, *first[1:], bias_corrections(2, 0.5, 0.5), beta1=0.5, beta2=0.5, eps=0.25
    )
    m_hat, s_hat = 1 / 0.75, 1.5 * (0.5 * 15 / 16) / (1.5 * 0.75)
    gain = s_hat / (s_hat + m_hat**2 + 0.25)
    assert (m, s) == pytest.approx((1.0, 1.5), rel=1e-14)
    assert g_hat == pytest.approx(m_hat - 2 * gain * m_hat, rel=1e-14)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999, 1 - 1e-9])
def test_bias_corrections_keep_their_digits(beta):
    for t in (1, 2, 10, 1000):
        exact = math.fsum((1 - beta) * beta**k for k in range(t))  # the geometric sum
        assert one_minus_power(beta, t) == pytest.approx(
            exact, rel=1e-7 if beta > 0.9999 else 1e-12
        )
        in_float32 = one_minus_power(beta, torch.tensor(float(t)), torch).item()
        assert in_float32 == pytest.approx(exact, rel=1e-6)


# --- properties ---------------------------------------------------------------------------------

TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-12}
magnitudes = st.integers(-20, 15).map(lambda exponent: 10.0**exponent)
dtypes = st.sampled_from([np.float32, np.float64])
some_steps = st.integers(1, 12)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def gradient_runs(draw, steps=some_steps):
    """A run of gradients of any shape, with magnitudes from 1e-20 to 1e15, zeros among them."""
    dtype, shape, n = draw(dtypes), draw(shapes), draw(steps)
    unit = hnp.arrays(np.float64, (n, *shape), elements=st.floats(-1, 1, width=32))
    return (draw(unit) * draw(magnitudes)).astype(dtype)


def tiny(gradients):
    return np.finfo(gradients.dtype).tiny


@given(gradient_runs(), st.sampled_from([0.0, 0.5, 0.9, 0.99]), st.booleans())
@settings(deadline=None)
def test_gain_is_between_0_and_1_and_the_estimate_finite(gradients, b1, correction):
    m, s = np.zeros_like(gradients[0]), np.zeros_like(gradients[0])
    for t, g in enumerate(gradients, start=1):
        scalars = bias_corrections(t, b1, 0.999, correction)
        g_hat, m, s = wiener_filter(g, m, s, scalars, beta1=b1, beta2=0.999, eps=1e-8)
        gain = wiener_gain(s * scalars.fluctuation, g - m / scalars.trend, 1e-8)
        assert np.all((gain >= 0) & (gain <= 1))
        assert np.all(np.isfinite(g_hat))
        assert g_hat.dtype == gradients.dtype


@given(gradient_runs(steps=st.just(1)), st.integers(1, 60))
@settings(deadline=None)
def test_a_constant_gradient_is_its_own_estimate_from_the_first_step_on(gradients, steps):
    constant = np.repeat(gradients, steps, axis=0)
    np.testing.assert_allclose(
        run_filter(constant), constant, rtol=TOLERANCE[constant.dtype], atol=tiny(constant)
    )


@given(gradient_runs())
@settings(deadline=None)
def test_without_averaging_the_estimate_is_the_gradient(gradients):
    np.testing.assert_array_equal(run_filter(gradients, b1=0.0), gradients)


@given(gradient_runs(), magnitudes)
@settings(deadline=None)
def test_scaling_gradients_by_c_and_eps_by_c_squared_scales_the_estimate(gradients, c):
    gradients = gradients.astype(np.float64)  # float32 cannot hold the squares of both
    scaled = run_filter(c * gradients, eps=1e-8 * c**2)
    expected = c * run_filter(gradients)
    # The residual is a difference, so its error is relative to the largest gradient.
    bound = 1e-10 * c * np.abs(gradients).max(initial=0)
    np.testing.assert_allclose(scaled, expected, rtol=1e-9, atol=bound + 1e-300)


@given(gradient_runs())
@settings(deadline=None)
def test_the_filter_is_odd(gradients):
    np.testing.assert_array_equal(run_filter(-gradients), -run_filter(gradients))


def test_settings_of_a_parameter_group():
    group = {
        "lr": 0.5, "correction": False, "gain_power": 0.5, "gain_scale": 1.0, "eps": 1e-6,
        "betas": (0.5, 0.9), "bias_correction": True,
    }  # fmt: skip
    settings = filter_settings(group)
    assert settings == ((0.5, 0.9), 1e-6, 1.0, 0.5, False, True)
    assert settings.corrections(7) == bias_corrections(7, 0.5, 0.9, correction=False)


@given(gradient_runs(), st.just(0.0) | st.floats(0, 2), st.booleans())
@settings(deadline=None)
def test_a_constant_gain_is_that_share_of_the_residual_and_reads_no_s(gradients, gain, unbiased):
    m = np.zeros_like(gradients[0])
    for t, g in enumerate(gradients, start=1):
        scalars = bias_corrections(t, 0.9, 0.999, bias_correction=unbiased)
        g_hat, m, s = wiener_filter(
            g, m, None, scalars, beta1=0.9, beta2=0.999, eps=1e-8, gain_scale=gain, gain_power=0
        )
        m_hat = m / (one_minus_power(0.9, t) if unbiased else 1)
        bound = TOLERANCE[gradients.dtype] * np.abs(gradients).max(initial=0) + tiny(gradients)
        np.testing.assert_allclose(g_hat, m_hat + gain * (g - m_hat), rtol=0, atol=4 * bound)
        assert s is None


@pytest.mark.parametrize("numbers", [FLOAT32, FLOAT64], ids=["float32", "float64"])
@pytest.mark.parametrize("beta1", [0.01, 0.9, 0.999])
@pytest.mark.parametrize("beta2", [0.0, 0.9, 0.999, 1 - 1e-7])
@pytest.mark.parametrize("kind", [None, "separate", "derived", "fluctuation"])
@pytest.mark.parametrize("correction", [True, False])
def test_nothing_overflows_below_the_largest_gradient(kind, beta1, beta2, numbers, correction):
    """Gradients of the worst signs, at the bound and beyond it: every number is finite."""
    dtype = np.float32 if numbers is FLOAT32 else np.float64
    settings = FilterSettings((beta1, beta2), correction=correction)
    denominator = kind and Denominator(kind)
    f = Filter(settings, denominator, numbers=numbers)
    rng = np.random.default_rng(0)
    chosen = np.array([np.inf, -np.inf, np.finfo(dtype).max, largest_gradient(beta2, numbers), 1.0])
    with np.errstate(over="raise", invalid="raise"):
        for _ in range(200):
            update = f(rng.choice(chosen, 50).astype(dtype))
            assert update.dtype == dtype
            assert np.isfinite([update, *(x for x in f.moments if x is not None)]).all()
            if kind and beta1**2 < beta2:  # else v forgets a large gradient before m does
                assert np.abs(update).max() <= 20 / (beta1 * math.sqrt(1 - beta2))


def test_an_ordinary_gradient_is_not_clipped_and_nan_stays():
    ordinary, nan = Filter(), Filter()
    assert largest_gradient(0.999, FLOAT32) > 3e16
    assert ordinary(1e150) == pytest.approx(1e150)
    assert np.isnan(nan(np.nan))
    assert np.isnan(nan(1.0))


def test_the_filter_as_an_object_remembers_what_it_has_seen():
    f, m, s = Filter(FilterSettings((0.5, 0.9))), 0.0, 0.0
    for t, g in enumerate((4.0, 5.0, -3.0), start=1):
        scalars = bias_corrections(t, 0.5, 0.9)
        g_hat, m, s = wiener_filter(g, m, s, scalars, beta1=0.5, beta2=0.9, eps=1e-8)
        assert f(g) == pytest.approx(g_hat, rel=1e-14)
        assert (f.t, f.g, f.moments) == (t, g, (m, s, None))
        assert f.estimate(gain_scale=0.0) == f.m_hat == m / scalars.trend
        gain = wiener_gain(s * scalars.fluctuation, g - f.m_hat, 1e-8)
        assert f.gain == gain
        assert f.estimate(gain_scale=1.0) == pytest.approx(f.m_hat + gain * (g - f.m_hat))


# --- a second moment from m and s -----------------------------------------------------------------

STEPS = (1, 2, 3, 10, 100, 1000)
#: The defaults, b2 = b1^2, b2 < b1^2, b2 = 0, short and long memories.
BETAS = [(0.9, 0.999), (0.9, 0.81), (0.9, 0.5), (0.5, 0.0), (0.5, 0.25), (0.1, 0.99), (0.99, 0.999)]


def mean_moments(steps, b1, b2, mean, variance):
    """E m^2 and E s after each step, for gradients of that mean and variance: a recursion."""
    m, m_squared, s, means = 0.0, 0.0, 0.0, []
    for _ in range(steps):
        # g - m = b1 (g - m_before), and g is independent of m_before.
        residual = b1**2 * (mean**2 + variance - 2 * mean * m + m_squared)
        m_squared = b1**2 * m_squared + 2 * b1 * (1 - b1) * m * mean
        m_squared += (1 - b1) ** 2 * (mean**2 + variance)
        m = b1 * m + (1 - b1) * mean
        s = b2 * s + (1 - b2) * residual
        means.append((m_squared, s))
    return means


@pytest.mark.parametrize("betas", BETAS, ids=str)
def test_the_mean_of_the_derived_second_moment_is_that_of_the_squared_gradient(betas):
    """Exactly, at every step, whether the gradient is all mean, all noise, or both."""
    for mean, variance in [(0.0, 1.0), (1.0, 0.0), (0.7, 2.0), (30.0, 0.01)]:
        moments = mean_moments(max(STEPS), *betas, mean, variance)
        for t in STEPS:
            weights = second_moment_weights(t, *betas, "derived")
            of_m, of_s = weights.of_m * moments[t - 1][0], weights.of_s * moments[t - 1][1]
            assert of_m + of_s == pytest.approx(mean**2 + variance, rel=1e-9), t


def simulated(betas, steps, mean=0.5, n=4000):
    """m, s and Adam's v of n gradients with noise of variance 1; `mean` is one, or one per step."""
    rng = np.random.default_rng(0)
    m, s, v = (np.zeros(n) for _ in range(3))
    for t in range(1, steps + 1):
        g = (mean[t - 1] if np.ndim(mean) else mean) + rng.normal(size=n)
        m, s = update_moments(g, m, s, *betas)
        v = betas[1] * v + (1 - betas[1]) * g * g
        yield t, m, s, v / one_minus_power(betas[1], t)


@pytest.mark.parametrize("betas", BETAS, ids=str)
def test_the_derived_second_moment_in_a_simulation(betas):
    for t, m, s, _ in simulated(betas, max(STEPS)):
        if t in STEPS:
            v_hat = second_moment(m, s, second_moment_weights(t, *betas, "derived"))
            error = v_hat.std() / len(v_hat) ** 0.5
            assert abs(v_hat.mean() - 1.25) < 5 * error, t
            assert (v_hat > 0).all()


def test_the_derived_second_moment_tends_to_adams():
    """For one element it differs by the fluctuation of m^2, of which it has about a tenth."""
    t, m, s, v = deque(simulated((0.9, 0.999), 4000, n=2000), maxlen=1).pop()
    ratio = second_moment(m, s, second_moment_weights(t, 0.9, 0.999, "derived")) / v
    assert ratio.mean() == pytest.approx(1, abs=0.02)
    assert ratio.std() < 0.25
    first = second_moment_weights(1, 0.9, 0.999, "derived")
    g = np.array([3.0, -2e-9])
    m, s = update_moments(g, 0 * g, 0 * g, 0.9, 0.999)
    np.testing.assert_allclose(second_moment(m, s, first), g * g, rtol=1e-12)  # as Adam's does


@pytest.mark.parametrize(("before", "after"), [(0.0, 10.0), (10.0, 0.0)])
def test_the_derived_second_moment_follows_a_mean_that_moves(before, after):
    """Its size: 30 steps after a jump, when m has come 96 percent of the way, v^ has come at least
    85 percent of the way and Adam's v not 4 percent."""
    jump, later = 3000, 30
    means = [before] * jump + [after] * later
    t, m, s, v = deque(simulated((0.9, 0.999), jump + later, mean=means, n=200), maxlen=1).pop()
    v_hat = second_moment(m, s, second_moment_weights(t, 0.9, 0.999, "derived")).mean()
    way = (after**2 - before**2) or 1.0
    assert 0.85 < (v_hat - before**2 - 1) / way < 1
    assert 0 < (v.mean() - before**2 - 1) / way < 0.04


def test_fluctuation_is_the_spread_about_the_mean_alone():
    """As AdaBelief divides: b1 (1 - r) of the noise, nothing of the mean."""
    t, _, s, _ = deque(simulated((0.9, 0.999), 3000, mean=100.0, n=500), maxlen=1).pop()
    weights = second_moment_weights(t, 0.9, 0.999, "fluctuation")
    assert weights.of_m == 0
    transient = 100.0**2 * 0.001 * 0.999**3000 * 0.81 / (1 - 0.81)  # of the first steps
    r = 0.1 / 1.9
    spread = (s * weights.of_s).mean() - transient / one_minus_power(0.999, t)
    assert spread == pytest.approx(0.81 * (1 + r), rel=0.03)


GRID = [0.01, 0.3, 0.5, 0.81, 0.9, 0.95, 0.99, 0.9999, 1 - 1e-6]


@pytest.mark.parametrize("b1", GRID)
def test_no_weight_is_negative_and_float32_is_near(b1):
    for b2 in [0.0, b1 * b1, np.nextafter(b1 * b1, 0), np.nextafter(b1 * b1, 1), *GRID]:
        for t in (1, 2, 3, 7, 30, 1000, 10**6, 10**9):
            exact = second_moment_weights(t, b1, b2, "derived")
            assert min(exact) >= 0
            assert all(map(math.isfinite, exact))
            if b1 > 0.9999:  # the difference of two sums of t terms has too few digits in float32
                continue
            tensor = torch.tensor(float(t))
            rounded = [float(w) for w in second_moment_weights(tensor, b1, b2, "derived", torch)]
            assert min(rounded) >= 0
            # The share of each in v^ of a constant gradient, or only of noise, has to agree.
            trend = one_minus_power(b1, t) ** 2
            for ours, theirs, unit in zip(rounded, exact, (trend, b1 * (1 - b2)), strict=True):
                assert abs(ours - theirs) * unit < 2e-5 + 1e-4 * theirs * unit


def test_without_m_and_s_of_its_own_the_weights_tend_to_their_limits():
    weights = second_moment_weights(10**5, 0.9, 0.999, "derived")
    assert tuple(weights) == pytest.approx((1, 1 / 0.9), rel=1e-3)

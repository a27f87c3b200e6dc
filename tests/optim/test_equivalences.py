"""Limits of the settings in which an optimizer equals a known one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum, WienerFilter

scales = st.integers(-20, 15).map(lambda exponent: 10.0**exponent)
seeds = st.integers(0, 2**16)


def trajectory(build, seed=0, steps=12, scale=1.0, shape=(4, 3)):
    """Where a parameter is after each of a few random gradients."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    optimizer = build([p])
    path = []
    for _ in range(steps):
        p.grad = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        optimizer.step()
        path.append(p.detach().clone())
    return torch.stack(path)


def assert_same(ours, theirs, scale=1.0, **kwargs):
    torch.testing.assert_close(
        trajectory(ours, scale=scale, **kwargs),
        trajectory(theirs, scale=scale, **kwargs),
        rtol=1e-9,
        atol=1e-9 * min(scale, 1.0),
    )


@given(scales, seeds)
@settings(deadline=None, max_examples=30)
def test_sgdf_without_averaging_is_sgd(scale, seed):
    def ours(p):
        return SGDF(p, lr=0.1, betas=(0.0, 0.999), weight_decay=0.01)

    assert_same(ours, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01), scale, seed=seed)


@given(scales, seeds)
@settings(deadline=None, max_examples=30)
def test_sgdf_without_gain_is_bias_corrected_ema(scale, seed):
    class BiasCorrectedEMA(Momentum):
        """m / (1 - 0.9^t) by dividing the learning rate, step after step."""

        count = 0

        def step(self):
            self.count += 1
            self.param_groups[0]["lr"] = 0.1 / (1 - 0.9**self.count)
            super().step()

    assert_same(
        lambda p: SGDF(p, lr=0.1, gain_scale=0.0),
        lambda p: BiasCorrectedEMA(p, lr=0.1, beta=0.9, mu=0.1),
        scale,
        seed=seed,
    )


@given(st.integers(-3, 6).map(lambda exponent: 10.0**exponent), seeds, st.sampled_from([1.0, 0]))
@settings(deadline=None, max_examples=30)
def test_filter_adam_without_gain_is_adam(scale, seed, power):
    """With a constant gain it keeps what Adam keeps, and no s."""
    for ours, theirs, decay in (
        (FilterAdam, torch.optim.Adam, 0.0),
        (FilterAdam, torch.optim.Adam, 0.01),
        (FilterAdamW, torch.optim.AdamW, 0.01),
    ):
        assert_same(
            lambda p, cls=ours, wd=decay: cls(
                p, lr=0.01, weight_decay=wd, gain_scale=0.0, gain_power=power
            ),
            lambda p, cls=theirs, wd=decay: cls(p, lr=0.01, weight_decay=wd),
            scale,
            seed=seed,
        )


@pytest.mark.parametrize("path", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_constant_gain_of_one_minus_beta_is_nesterovs_momentum(decay, path):
    """200 steps down a quadratic whose curvatures differ by 100, with noise, in float64."""

    def run(build):
        generator = torch.Generator().manual_seed(0)
        p = torch.randn(20, generator=generator, dtype=torch.float64).requires_grad_()
        optimizer, curvature = build([p]), torch.logspace(-1, 1, 20, dtype=torch.float64)
        visited = []
        for _ in range(200):
            noise = 0.1 * torch.randn(20, generator=generator, dtype=torch.float64)
            p.grad = curvature * p.detach() + noise
            optimizer.step()
            visited.append(p.detach().clone())
        return torch.stack(visited)

    constant = {"gain_power": 0, "gain_scale": 1 - 0.9, "bias_correction": False}
    ours = run(lambda p: SGDF(p, lr=0.1, weight_decay=decay, **constant, **path))
    theirs = run(
        lambda p: torch.optim.SGD(
            p, lr=0.1 * (1 - 0.9), momentum=0.9, nesterov=True, weight_decay=decay
        )
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    bias_corrected = run(lambda p: SGDF(p, lr=0.1, gain_power=0, gain_scale=1 - 0.9))
    assert (bias_corrected[0] - theirs[0]).abs().max() > 0.01


def test_filter_adamw_has_adamws_defaults():
    assert_same(lambda p: FilterAdamW(p, gain_scale=0.0), torch.optim.AdamW)


gains = st.sampled_from([(2.0, 1.0), (1.0, 1.0), (1.0, 0.5), (0.1, 0.0)])


@given(scales, seeds, gains, st.booleans(), st.booleans(), st.sampled_from([None, 0.0, 1e-3]))
@settings(deadline=None, max_examples=30)
def test_the_filter_on_sgd_is_sgdf(scale, seed, gain, correction, bias_correction, gain_eps):
    filter_settings = {
        "gain_scale": gain[0],
        "gain_power": gain[1],
        "correction": correction,
        "bias_correction": bias_correction,
        "gain_eps": gain_eps,
    }

    def filtered_sgd(p):
        optimizer = torch.optim.SGD(p, lr=0.1)
        WienerFilter(optimizer, **filter_settings)
        return optimizer

    assert_same(lambda p: SGDF(p, lr=0.1, **filter_settings), filtered_sgd, scale, seed=seed)


@pytest.mark.parametrize("foreach", [False, True])
def test_momentum_covers_sgd_and_classical_momentum(foreach):
    for beta in (0.0, 0.9):
        assert_same(
            lambda p, beta=beta: Momentum(p, 0.1, beta, 1.0, 0.01, foreach=foreach),
            lambda p, beta=beta: torch.optim.SGD(p, 0.1, momentum=beta, weight_decay=0.01),
        )


@given(scales, seeds, st.sampled_from(["derived", "fluctuation"]))
@settings(deadline=None, max_examples=30)
def test_without_eps_the_lean_forms_do_not_depend_on_the_scale_of_gradients(scale, seed, kind):
    def build(p):
        return FilterAdam(p, lr=0.1, eps=0.0, second_moment=kind)

    plain, scaled = trajectory(build, seed), trajectory(build, seed, scale=scale)
    torch.testing.assert_close(plain, scaled, rtol=1e-9, atol=1e-9)

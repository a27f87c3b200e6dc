"""From one form of an optimizer to another in the middle of a run."""

import functools
import warnings
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgdf import SGDF, FilterAdam, FilterAdamW
from sgdf.filter import one_minus_power, second_moment, second_moment_weights
from stepping import advance

pytestmark = pytest.mark.filterwarnings("ignore:loaded a state")


def trained(make, steps=300, dtype=torch.float64):
    """An optimizer in the middle of a run on gradients with a mean of 0.3 and a spread of 1."""
    p = torch.zeros(2000, dtype=dtype, requires_grad=True)
    optimizer = make([p])
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        p.grad = 0.3 + torch.randn(2000, generator=generator, dtype=torch.float64).to(dtype)
        optimizer.step()
    return optimizer, optimizer.state[p]


def continued(make, source):
    p = torch.zeros(2000, dtype=torch.float64, requires_grad=True)
    optimizer = make([p])
    optimizer.load_state_dict(deepcopy(source.state_dict()))
    return optimizer, optimizer.state[p]


LEAN = functools.partial(FilterAdamW, second_moment="derived")
SEPARATE = functools.partial(FilterAdamW, second_moment="separate")


def test_a_separate_second_moment_is_dropped_by_the_derived_form():
    source, before = trained(SEPARATE)
    optimizer, state = continued(LEAN, source)
    assert set(state) == {"step", "exp_avg", "exp_var"}
    assert optimizer.param_groups[0]["second_moment"] == "derived"
    assert torch.equal(state["exp_var"], before["exp_var"])


@pytest.mark.parametrize("steps", [1, 2, 300])
def test_a_second_moment_is_made_from_the_others(steps):
    """Its v^ is that of the derived form, and on average that of the separate one."""
    source, before = trained(LEAN, steps)
    optimizer, state = continued(SEPARATE, source)
    assert optimizer.param_groups[0]["second_moment"] == "separate"
    weights = second_moment_weights(steps, 0.9, 0.999, "derived")
    expected = second_moment(before["exp_avg"], before["exp_var"], weights)
    v_hat = state["exp_avg_sq"] / one_minus_power(0.999, steps)
    torch.testing.assert_close(v_hat, expected)
    _, separate = trained(SEPARATE, steps)
    assert abs(state["exp_avg_sq"].mean() / separate["exp_avg_sq"].mean() - 1) < 0.02


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("steps", [1, 2, 300])
def test_a_checkpoint_of_adam_continues_with_the_filter(make, steps):
    """s is on average what the filter would have: m, v and the step are Adam's."""
    source, before = trained(make, steps)
    for ours in (SEPARATE, LEAN):
        optimizer, state = continued(ours, source)
        assert torch.equal(state["exp_avg"], before["exp_avg"])
        _, filtered = trained(ours, steps)
        assert abs(state["exp_var"].mean() / filtered["exp_var"].mean() - 1) < 0.05
        assert (state["exp_var"] >= 0).all()
        group = optimizer.param_groups[0]
        assert group["gain_scale"] == 2.0
        assert group["second_moment"] == ("separate" if ours is SEPARATE else "derived")
        p = group["params"][0]
        p.grad = torch.ones_like(p)
        optimizer.step()
        assert p.isfinite().all()
    assert torch.equal(continued(SEPARATE, source)[1]["exp_avg_sq"], before["exp_avg_sq"])


def test_a_constant_gain_takes_m_and_v_of_adam_as_they_are():
    source, before = trained(torch.optim.AdamW)
    make = functools.partial(FilterAdamW, gain_power=0, gain_scale=0.05)
    _, state = continued(make, source)
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert torch.equal(state["exp_avg_sq"], before["exp_avg_sq"])


def test_a_setting_changed_during_training_makes_the_moment_it_needs():
    source, state = trained(LEAN)
    group = source.param_groups[0]
    group["second_moment"] = "separate"
    p = group["params"][0]
    before = p.detach().clone()
    p.grad = torch.full_like(p, 0.3)
    source.step()
    assert "exp_avg_sq" in state
    assert (p - before).abs().max() < 0.01  # a v of 0 would give steps of any size


@pytest.mark.parametrize("state_dtype", [torch.int8, torch.bfloat16])
def test_conversion_between_formats_of_the_state(state_dtype):
    def run(make, source=None):
        p = torch.zeros(32, 256, requires_grad=True)
        optimizer = make([p])
        if source is not None:
            optimizer.load_state_dict(source.state_dict())
        advance(optimizer, 20)
        return optimizer, optimizer.state[p]

    small = functools.partial(FilterAdam, second_moment="derived", state_dtype=state_dtype)
    source, _ = run(small)
    wide, state = run(functools.partial(FilterAdam, second_moment="separate"), source)
    assert state["exp_avg_sq"].dtype == torch.float32
    _, state = run(small, wide)
    kept = {"step", "exp_avg", "exp_var"}
    of_int8 = {"exp_avg_scale", "exp_var_scale", "memory_order"}
    scales = of_int8 if state_dtype == torch.int8 else set()
    assert set(state) == kept | scales
    assert state["exp_var"].dtype == (torch.uint8 if scales else state_dtype)


# --- no step after a conversion is long -----------------------------------------------------------

SETTINGS = {"2K": {}, "constant gain": {"gain_power": 0, "gain_scale": 0.1}}
ADAMS = {
    f"{kind}, {gain}": functools.partial(FilterAdam, second_moment=kind, lr=1e-3, **options)
    for kind in ("separate", "derived", "fluctuation")
    for gain, options in SETTINGS.items()
}
SOURCES = {
    **ADAMS,
    **{f"SGDF, {gain}": functools.partial(SGDF, **options) for gain, options in SETTINGS.items()},
    "Adam": functools.partial(torch.optim.Adam, lr=1e-3),
    "AdamW, amsgrad": functools.partial(torch.optim.AdamW, lr=1e-3, amsgrad=True),
}
LONGEST = 6  # times lr; AdaBelief's own steps are long where the noise is small


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", ADAMS)
@settings(max_examples=5, deadline=None)
@given(st.sampled_from([0.0, 0.3, 1.0, 3.0]), st.sampled_from([1, 2, 30]), st.integers(0, 99))
def test_no_step_after_a_conversion_is_longer_than_a_few_lr(source, target, mean, steps, seed):
    """From any form to any other, by a checkpoint, and also by changing a running optimizer."""
    generator = torch.Generator().manual_seed(seed)

    def longest_step(optimizer, p, steps):
        moves = []
        for _ in range(steps):
            before = p.detach().clone()
            p.grad = mean + torch.randn(p.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
            moves.append((p.detach() - before).abs().max().item() / 1e-3)
        return max(moves)

    p, q = (torch.zeros(500, dtype=torch.float64, requires_grad=True) for _ in range(2))
    old, new = SOURCES[source]([p]), ADAMS[target]([q])
    longest_step(old, p, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new.load_state_dict(deepcopy(old.state_dict()))
    assert longest_step(new, q, 20) < LONGEST
    if source in ADAMS:
        form = ("second_moment", "gain_power", "gain_scale")
        wanted = ADAMS[target]([torch.zeros(1)]).param_groups[0]
        old.param_groups[0].update({name: wanted[name] for name in form})
        assert longest_step(old, p, 20) < LONGEST


def test_what_cannot_be_made_starts_anew_and_says_so():
    """A constant gain keeps no s, so there is nothing to make v from."""
    source, _ = trained(functools.partial(SGDF, gain_power=0, gain_scale=0.1))
    p = torch.zeros(2000, dtype=torch.float64, requires_grad=True)
    optimizer = FilterAdam([p])
    with pytest.warns(UserWarning, match="moments and steps start anew"):
        optimizer.load_state_dict(source.state_dict())
    assert not optimizer.state.get(p)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.state[p]["step"] == 1


def test_a_gain_that_opens_late_says_so():
    """SGDF with a constant gain has nothing to make s from."""
    optimizer, state = trained(functools.partial(SGDF, gain_power=0, gain_scale=0.1))
    optimizer.param_groups[0].update(gain_power=1.0, gain_scale=2.0)
    with pytest.warns(UserWarning, match="opens over the next 1000 steps"):
        optimizer.step()
    assert state["exp_var"].max() < 0.1  # of a variance of 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        trained(SGDF, 2)

"""Tensors without memory, or that do not belong together, never reach a kernel by their address."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import Linear

import stepping
from kernels.problems import eight_bit, problem
from reference import OPTIMIZERS
from sgdf import SGDF, FilterAdam, Momentum
from sgdf.kernels import cuda
from sgdf.kernels.plan import Plan

PATHS = {"default": {}, **stepping.PATHS}
EIGHT_BIT = {"state_dtype": torch.int8}


def steps(optimizer, model, count=2):
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_fake_tensors(optimizer_class, device, path):
    """As with torch's own optimizers: shapes and dtypes of a step, without its arithmetic."""
    with FakeTensorMode():
        model = Linear(128, 64, device=device)
        optimizer = optimizer_class(model.parameters(), lr=0.1, **PATHS[path])
        steps(optimizer, model)
        assert optimizer.implementation == "loop"
        for key in optimizer.moments_of(optimizer.param_groups[0]):
            moment = optimizer.state[model.weight][key]
            assert (moment.shape, moment.device) == (model.weight.shape, model.weight.device)


@pytest.mark.parametrize("optimizer_class", [SGDF, FilterAdam])
def test_fake_tensors_with_8_bit_state(optimizer_class):
    with FakeTensorMode():
        model = Linear(128, 64)
        optimizer = optimizer_class(model.parameters(), lr=0.1, **EIGHT_BIT)
        steps(optimizer, model)
        assert optimizer.state[model.weight]["exp_avg_scale"].shape == (64, 1)
        assert optimizer.state[model.weight]["step"].item() == 2


@pytest.mark.parametrize("settings", [{}, {"foreach": False}, {"foreach": True}, EIGHT_BIT])
def test_meta_tensors(settings):
    model = Linear(128, 64, device="meta")
    optimizer = SGDF(model.parameters(), lr=0.1, **settings)
    steps(optimizer, model)
    assert optimizer.state[model.weight]["exp_var"].is_meta
    assert optimizer.state[model.weight]["step"] == 2


UNFIT = {
    "on another device": lambda t: t.to("meta"),
    "too small": lambda t: t[:1].clone(),
    "of another shape": lambda t: t.flatten(),
}


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_moment_that_does_not_fit_changes_nothing(optimizer_class, path, unfit):
    model = Linear(128, 64)
    optimizer = optimizer_class(model.parameters(), lr=0.1, **PATHS[path])
    steps(optimizer, model)
    before = [p.detach().clone() for p in model.parameters()]
    for key in optimizer.moments_of(optimizer.param_groups[0]):
        kept = optimizer.state[model.weight][key]
        optimizer.state[model.weight][key] = UNFIT[unfit](kept)
        with pytest.raises(RuntimeError, match=r"shape \(64, 128\) on cpu .* found a moment of"):
            optimizer.step()
        optimizer.state[model.weight][key] = kept
    assert all(map(torch.equal, before, model.parameters()))
    if path != "foreach":  # torch's functions notice it when the moments have changed
        assert optimizer.state[model.bias].get("step", 2) == 2
    optimizer.step()


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("key", ["exp_avg", "exp_var", "exp_avg_scale", "exp_var_scale"])
def test_8_bit_state_that_does_not_fit(key, unfit):
    model = Linear(512, 64)
    optimizer = SGDF(model.parameters(), lr=0.1, **EIGHT_BIT)
    steps(optimizer, model)
    before = model.weight.detach().clone()
    state = optimizer.state[model.weight]
    state[key] = UNFIT[unfit](state[key])
    with pytest.raises(RuntimeError, match="but found"):
        optimizer.step()
    assert torch.equal(model.weight, before)


# --- the plan of a fused step on CUDA, made here of tensors on the CPU ---------------------------


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("column", [3, 4, 5])
def test_a_plan_refuses_a_moment_that_does_not_fit(column, unfit):
    columns = problem([(8, 4), (64, 128)])
    columns[column][1] = UNFIT[unfit](columns[column][1])
    with pytest.raises(RuntimeError, match="but found a moment"):
        Plan(tuple(columns))


def test_a_plan_refuses_scales_that_do_not_fit():
    columns = eight_bit([(64, 512)])
    moment = columns[4][0]
    columns[4][0] = moment._replace(scale=moment.scale[:, :1].contiguous())
    with pytest.raises(RuntimeError, match="found the scale of an 8-bit moment"):
        Plan(tuple(columns))


@pytest.mark.parametrize("column", [2, 4, 5])
def test_a_plan_leaves_a_mixture_of_dtypes_to_the_loop(column):
    """A launch reads all moments in one dtype, and steps in float32."""
    columns = problem([(8, 4), (64, 128)])
    columns[column][1] = columns[column][1].double()
    plan = Plan(tuple(columns))
    assert plan.strided == [1]
    assert [launch.indices for launch in plan.launches] == [(0,)]


def test_a_plan_does_not_fit_moments_of_another_dtype_at_the_same_address():
    columns = problem([(64, 128)])
    plan = Plan(tuple(columns))
    assert plan.adapt_to(tuple(columns))
    columns[4] = [columns[4][0].view(torch.int32)]
    assert not plan.adapt_to(tuple(columns))


@pytest.mark.parametrize("optimizer_class", [SGDF, Momentum])
def test_a_planned_step_notices_a_moment_that_left(optimizer_class, monkeypatch):
    monkeypatch.setattr(cuda, "DEVICES", ("cuda", "cpu"))  # interpreted on the CPU
    p = torch.ones(8, requires_grad=True)
    optimizer = optimizer_class([p], fused=True)
    for _ in range(2):
        p.grad = torch.ones(8)
        optimizer.step()
    before = p.detach().clone()
    key = optimizer.moments_of(optimizer.param_groups[0])[0]
    optimizer.state[p][key] = torch.zeros(8, device="meta")
    with pytest.raises(RuntimeError, match=r"on cpu .* found a moment of shape \(8,\) on meta"):
        optimizer.step()
    assert torch.equal(p, before)

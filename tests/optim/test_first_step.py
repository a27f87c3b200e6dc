"""A first step of zeros, made to create state, leaves no trace in the bias corrections."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from reference import FORMS, OPTIMIZERS
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum, WienerFilter, step_in_backward
from stepping import assert_bitwise

FORMS = {**{c.__name__: (c, {}) for c in OPTIMIZERS}, **FORMS}
each_form = pytest.mark.parametrize(("optimizer_class", "settings"), FORMS.values(), ids=FORMS)


def small_model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def create_state(optimizer):
    """As torch's distributed checkpoints do it, and trainers before the first batch."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.0) if isinstance(group["lr"], torch.Tensor) else 0.0
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()


def train(model, optimizer, steps=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("path", [{"foreach": False}, {"foreach": True}, {}], ids=str)
@each_form
def test_it_creates_all_state_and_does_not_count(optimizer_class, settings, path):
    model, twin = small_model(), small_model()
    optimizer = optimizer_class(model.parameters(), weight_decay=0.1, **settings, **path)
    before = deepcopy(model.state_dict())
    create_state(optimizer)
    assert_bitwise(dict(model.state_dict()), dict(before))
    moments = set(optimizer.moments_of(optimizer.param_groups[0]))
    for p in model.parameters():
        assert moments <= set(optimizer.state[p])
        assert not any(value.any() for value in optimizer.state[p].values())
    untouched = optimizer_class(twin.parameters(), weight_decay=0.1, **settings, **path)
    assert_bitwise(train(model, optimizer), train(twin, untouched))


def test_a_rate_in_a_tensor():
    model = small_model()
    optimizer = SGDF(model.parameters(), lr=torch.tensor(0.5))
    create_state(optimizer)
    assert {float(state["step"]) for state in optimizer.state.values()} == {0.0}


def test_the_filter_in_front_of_another_optimizer():
    def filtered(model, first):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        WienerFilter(optimizer)
        if first:
            create_state(optimizer)
        return train(model, optimizer)

    assert_bitwise(filtered(small_model(), True), filtered(small_model(), False))


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        pass


def test_the_filter_reads_no_rate_that_is_not_there_and_no_sparse_gradient():
    p = torch.ones(2, 2, requires_grad=True)
    wiener = WienerFilter(WithoutRate([p]))
    p.grad = torch.zeros(2, 2)
    wiener.optimizer.step()
    assert float(wiener.state[p]["step"]) == 1.0
    sgd = torch.optim.SGD([p], lr=0.0)
    WienerFilter(sgd)
    p.grad = torch.zeros(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        sgd.step()


def counted(optimizer):
    return {float(state["step"]) for state in optimizer.state.values()}


def test_steps_that_are_real_count():
    """A warm-up from 0, gradients of zeros at a rate, and a later step of zeros."""
    model = small_model()
    optimizer = SGDF(model.parameters(), lr=0.0)
    train(model, optimizer, 1)
    assert counted(optimizer) == {1.0}
    create_state(optimizer)
    assert counted(optimizer) == {2.0}
    optimizer = SGDF(model.parameters(), lr=0.1, weight_decay=0.1)
    before = model.weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert counted(optimizer) == {1.0}
    assert not torch.equal(model.weight, before)


def test_one_gradient_that_is_not_zero_makes_a_step():
    model = small_model()
    optimizer = SGDF(model.parameters(), lr=0.0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    model.bias.grad[2] = 1.0
    optimizer.step()
    assert counted(optimizer) == {1.0}


def test_the_way_out_for_a_step_that_did_count():
    """A trainer that creates state with its full rate; the docstring of SGDF says how."""
    model, twin = small_model(), small_model()
    optimizer = SGDF(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.state.clear()
    assert_bitwise(train(model, optimizer), train(twin, SGDF(twin.parameters())))


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_torchs_state_dicts_can_be_asked_for_before_the_first_step(optimizer_class, in_backward):
    """Trainers do, for the structure of a checkpoint; then they train."""
    model, twin = small_model(), small_model()
    optimizer = optimizer_class(model.parameters())
    if in_backward:
        step_in_backward(optimizer)
    saved = get_optimizer_state_dict(model, optimizer)
    assert set(saved["state"]) == {"weight", "bias"}
    untouched = optimizer_class(twin.parameters())
    assert_bitwise(train(model, optimizer), train(twin, untouched))


@pytest.mark.parametrize("filter_first", [True, False])
def test_the_filter_may_be_restored_before_or_after_its_optimizer(filter_first):
    """Setting the optimizer's state makes the step of zeros."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    wiener = WienerFilter(optimizer)
    train(model, optimizer)
    saved = deepcopy(get_optimizer_state_dict(model, optimizer))
    of_filter = deepcopy(wiener.state_dict())
    twin = deepcopy(model)
    resumed = torch.optim.AdamW(twin.parameters())
    other = WienerFilter(resumed)
    if filter_first:
        other.load_state_dict(of_filter)
    set_optimizer_state_dict(twin, resumed, saved)
    if not filter_first:
        other.load_state_dict(of_filter)
    assert {float(state["step"]) for state in other.state.values()} == {3.0}
    assert_bitwise(train(twin, resumed), train(model, optimizer))


@pytest.mark.parametrize("optimizer_class", [SGDF, FilterAdam, FilterAdamW, Momentum])
def test_torchs_state_dicts_resume(optimizer_class):
    """Setting one makes the step of zeros, and then loads: the counters are those saved."""
    model = small_model()
    optimizer = optimizer_class(model.parameters())
    train(model, optimizer)
    saved = deepcopy(get_optimizer_state_dict(model, optimizer))
    twin = deepcopy(model)
    resumed = optimizer_class(twin.parameters())
    set_optimizer_state_dict(twin, resumed, saved)
    if optimizer_class is not Momentum:
        assert counted(resumed) == {3.0}
    assert_bitwise(train(twin, resumed), train(model, optimizer))

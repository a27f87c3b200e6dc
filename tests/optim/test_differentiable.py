"""Autograd through the step: gradcheck in the parameter, the gradient, the state and the lr."""

import pytest
import torch
from torch.autograd import gradcheck

from reference import FORMS, OPTIMIZERS
from sgdf import SGDF, FilterAdam, Momentum

SETTINGS = [
    {},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
]
FILTER_SETTINGS = [{"gain_scale": 1.0, "gain_power": 0.5}, {"correction": False}]
CASES = [(cls, s) for cls in OPTIMIZERS for s in SETTINGS] + [
    (cls, s) for cls in (SGDF, FilterAdam) for s in FILTER_SETTINGS
]
CASES += FORMS.values()


@pytest.mark.parametrize(("optimizer_class", "settings"), CASES)
def test_gradcheck(optimizer_class, settings):
    probe = optimizer_class([torch.zeros(1)], **settings)
    keys = probe.moments_of(probe.param_groups[0])
    torch.manual_seed(0)
    p, g, lr = torch.randn(6), torch.randn(6), torch.tensor(0.3)
    # Away from zero, where Adam's root and the half power of the gain have no derivative.
    state = [0.5 + torch.rand(6) for _ in keys]
    inputs = [x.double().requires_grad_() for x in (p, g, lr, *state)]

    def step(p, g, lr, *state):
        p = p.clone()
        p.grad = g
        optimizer = optimizer_class([p], lr=lr, differentiable=True, **settings)
        for key, value in zip(keys, state, strict=True):
            optimizer.state[p][key] = value.clone()
        if optimizer.counts_steps:
            optimizer.state[p]["step"] = torch.tensor(4.0)
        optimizer.step()
        return (p, *(optimizer.state[p][key] for key in keys))

    assert gradcheck(step, inputs)


@pytest.mark.parametrize("optimizer_class", [SGDF, Momentum])
def test_a_learning_rate_can_be_learned_through_two_steps(optimizer_class):
    lr = torch.tensor(0.1, requires_grad=True)
    p = torch.tensor([1.0, -2.0]).clone()
    weights = p.requires_grad_().clone()
    optimizer = optimizer_class([weights], lr=lr, differentiable=True)
    for _ in range(2):
        weights.grad = (2 * weights).detach()
        optimizer.step()
    weights.square().sum().backward()
    assert lr.grad is not None
    assert lr.grad < 0  # a larger rate would have gone further down

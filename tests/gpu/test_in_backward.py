"""step_in_backward on a GPU: the bits of ordinary steps, plans made once, less memory."""

import copy

import pytest
import torch
from torch import nn

from reference import CASES
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum, step_in_backward
from sgdf.kernels.plan import Plan
from sgdf.optim import wait_until_compiled
from stepping import PATHS, each_path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True, scope="module")
def _detector_in_cpp():
    wait_until_compiled()


def chain(depth, width=256, dtype=torch.float32):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*layers).to("cuda", dtype)


def train(model, optimizer, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    p = next(model.parameters())
    inputs = torch.randn(8, p.shape[1], device="cuda", generator=generator).to(p.dtype)
    optimizer.zero_grad()
    model(inputs).float().square().mean().backward()
    optimizer.step()


def twins(make, model, steps=4, **settings):
    models = [model, copy.deepcopy(model)]
    optimizers = [make(each.parameters(), **settings) for each in models]
    step_in_backward(optimizers[1])
    for seed in range(steps):
        for each, optimizer in zip(models, optimizers, strict=True):
            train(each, optimizer, seed)
    return models, optimizers


def assert_equal(models, optimizers):
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(p, q)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)


@each_path
@pytest.mark.parametrize(("make", "settings"), CASES)
def test_it_equals_ordinary_steps(make, settings, path):
    assert_equal(*twins(make, chain(3), **settings, **PATHS[path]))


@pytest.mark.parametrize("make", [SGDF, FilterAdam, FilterAdamW])
def test_it_draws_the_random_bits_of_ordinary_steps(make):
    model = chain(3, dtype=torch.bfloat16)
    model[0].requires_grad_(False)
    settings = {"stochastic_rounding": True, "state_dtype": torch.int8}
    assert_equal(*twins(make, model, **settings))


def test_a_group_on_two_devices_takes_the_path_of_the_group():
    model = chain(2, width=8)
    on_cpu = nn.Parameter(torch.ones(3))
    optimizer = SGDF([*model.parameters(), on_cpu])
    assert optimizer.implementation != "fused"
    step_in_backward(optimizer)
    train(model, optimizer, 0)
    assert not any(state["step"].is_cuda for state in optimizer.state.values())


@pytest.mark.parametrize("make", [SGDF, Momentum])
def test_plans_are_made_once(make, monkeypatch):
    made, adapted = [], []
    init, adapt = Plan.__init__, Plan.adapt_to
    monkeypatch.setattr(Plan, "__init__", lambda s, *a: (made.append(s), init(s, *a))[1])
    monkeypatch.setattr(Plan, "adapt_to", lambda s, c: (adapted.append(s), adapt(s, c))[1])
    twins(make, chain(4), steps=6)
    assert len(made) == 1 + 8
    assert not adapted


def test_the_gradients_do_not_exist_all_at_once():
    depth, width = 16, 1024
    peaks = {}
    for in_backward in (False, True):
        model = chain(depth, width)
        optimizer = SGDF(model.parameters())
        if in_backward:
            step_in_backward(optimizer)
        for seed in range(3):
            torch.cuda.reset_peak_memory_stats()
            train(model, optimizer, seed)
        optimizer.zero_grad()
        peaks[in_backward] = torch.cuda.max_memory_allocated()
        del model, optimizer
    gradients = 4 * depth * width * width
    assert peaks[False] - peaks[True] > 0.8 * gradients

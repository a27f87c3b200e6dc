"""step_in_backward on a GPU: the bits of ordinary steps, plans made once, less memory."""

import pytest
import torch
from torch import nn

from optim.in_backward import (
    RANDOM,
    STEPS,
    Twins,
    assert_draws_the_bits_of_ordinary_steps,
    loss_of,
    new_net,
)
from reference import CASES
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum, step_in_backward
from sgdf.kernels.plan import Plan
from sgdf.optim import wait_until_compiled
from stepping import PATHS, each_path

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def _detector_in_cpp():
    wait_until_compiled()


@each_path
@pytest.mark.parametrize(("make", "settings"), CASES)
def test_it_equals_ordinary_steps(make, settings, path):
    twins = Twins(make, new_net(width=256).cuda(), **settings, **PATHS[path])
    twins.train(*range(STEPS))
    twins.assert_equal()


@pytest.mark.parametrize("case", RANDOM)
@pytest.mark.parametrize("make", [SGDF, FilterAdam, FilterAdamW])
def test_it_draws_the_random_bits_of_ordinary_steps(make, case):
    assert_draws_the_bits_of_ordinary_steps(make, case, "cuda")


def test_a_group_on_two_devices_takes_the_path_of_the_group():
    model = new_net().cuda()
    optimizer = SGDF([*model.parameters(), nn.Parameter(torch.ones(3))])
    assert optimizer.implementation != "fused"
    step_in_backward(optimizer)
    loss_of(model, 0).backward()
    optimizer.step()
    assert not any(state["step"].is_cuda for state in optimizer.state.values())


@pytest.mark.parametrize("make", [SGDF, Momentum])
def test_plans_are_made_once(make, monkeypatch):
    made, adapted = [], []
    init, adapt = Plan.__init__, Plan.adapt_to
    monkeypatch.setattr(Plan, "__init__", lambda s, *a: (made.append(s), init(s, *a))[1])
    monkeypatch.setattr(Plan, "adapt_to", lambda s, c: (adapted.append(s), adapt(s, c))[1])
    layers = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)]
    Twins(make, nn.Sequential(*layers).cuda()).train(*range(6))
    assert len(made) == 1 + 6  # of the ordinary group, and of each parameter
    assert not adapted


def test_the_gradients_do_not_exist_all_at_once():
    depth, width = 16, 1024
    peaks = {}
    for in_backward in (False, True):
        layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
        model = nn.Sequential(*layers).cuda()
        optimizer = SGDF(model.parameters())
        if in_backward:
            step_in_backward(optimizer)
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            model(torch.ones(8, width, device="cuda")).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()
        peaks[in_backward] = torch.cuda.max_memory_allocated()
        del model, optimizer
    gradients = 4 * depth * width * width
    assert peaks[False] - peaks[True] > 0.8 * gradients

"""Runs with `step_in_backward` beside ordinary ones."""

import copy

import torch
from torch import nn

from sgdf import step_in_backward
from stepping import assert_bitwise

STEPS = 4
WIDTH = 128  # rows of 128 and more have 8-bit state
RANDOM = {
    "8-bit": (torch.float32, {"state_dtype": torch.int8, "rounding_seed": 3}),
    "stochastic": (torch.bfloat16, {"stochastic_rounding": True}),
    "both": (torch.bfloat16, {"state_dtype": torch.int8, "stochastic_rounding": True}),
}


class Net(nn.Module):
    """Two layers and a head; the second layer is used twice."""

    def __init__(self, width=6, dtype=torch.float32):
        super().__init__()
        self.first = nn.Linear(4, width, dtype=dtype)
        self.shared = nn.Linear(width, width, dtype=dtype)
        self.head = nn.Linear(width, 1, dtype=dtype)
        self.other_head = nn.Linear(width, 1, dtype=dtype)

    def forward(self, x, other=False):
        x = self.shared(self.shared(self.first(x).tanh()).tanh()).tanh()
        return self.other_head(x) if other else self.head(x)


def new_net(**options):
    torch.manual_seed(0)
    return Net(**options)


def frozen(model, name="first"):
    getattr(model, name).requires_grad_(False)
    return model


def loss_of(model, seed, **options):
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    p = next(model.parameters())
    outputs = model(inputs.to(p.device, p.dtype), **options)
    return (outputs.float() - 1).square().mean()


class Twins:
    """One model and its copy: the first updated by ordinary steps, the second in backward."""

    def __init__(self, make, model=None, groups=nn.Module.parameters, **settings):
        model = new_net() if model is None else model
        self.models = [model, copy.deepcopy(model)]
        self.optimizers = [make(groups(model), **settings) for model in self.models]
        self.handle = step_in_backward(self.optimizers[1])

    def train(self, *seeds, loss=loss_of, **options):
        for seed in seeds:
            for model, optimizer in zip(self.models, self.optimizers, strict=True):
                optimizer.zero_grad()
                loss(model, seed, **options).backward()
                optimizer.step()

    def assert_equal(self):
        """Bit by bit, in all that a step changes."""
        ordinary, ours = self.models
        assert_bitwise(ours.parameters(), ordinary.parameters())
        assert all(p.grad is None for p in ours.parameters())
        states = [optimizer.state_dict()["state"] for optimizer in self.optimizers]
        assert states[0]
        assert_bitwise(states[1], states[0])


def assert_draws_the_bits_of_ordinary_steps(make, case, device="cpu", **flags):
    dtype, settings = RANDOM[case]
    # The frozen layer is first in its group: ordinary steps do not count it.
    model = frozen(new_net(width=WIDTH, dtype=dtype)).to(device)
    twins = Twins(make, model, **settings, **flags)
    twins.train(*range(STEPS))
    twins.assert_equal()
    if "state_dtype" in settings:
        state = twins.optimizers[1].state[twins.models[1].shared.weight]
        assert state["exp_avg"].dtype == torch.int8

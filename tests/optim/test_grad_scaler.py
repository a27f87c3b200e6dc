"""Under GradScaler: scaled steps are plain steps, and a skipped step leaves nothing behind."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.testing import assert_close

from reference import FORMS
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum, WienerFilter

SCALE = 2.0**10  # a power of 2: scaling and unscaling are exact
STEPS = 6


class Run:
    """A small model in training, with or without a scaler.

    With `filtered` it has a WienerFilter too, or one with those settings.
    """

    def __init__(self, make, filtered, scaled=True):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.optimizer = make(self.model.parameters())
        options = filtered if isinstance(filtered, dict) else {}
        self.wiener = WienerFilter(self.optimizer, **options) if filtered else None
        # One growth on the way, so that steps are taken at two different scales.
        self.scaler = GradScaler("cpu", SCALE, growth_interval=4, enabled=scaled)

    def step(self, seed, unscale=False, overflow=False):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        self.optimizer.zero_grad()
        self.scaler.scale((self.model(inputs) - 1).square().mean()).backward()
        if overflow:
            self.model[0].weight.grad[2, 1] = torch.inf
        if unscale:
            self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def everything(self):
        """All that a step changes."""
        states = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "filter": self.wiener.state_dict()["state"] if self.wiener else {},
        }
        return copy.deepcopy(states)


def fused_adam(params):
    return torch.optim.Adam(params, lr=0.02, fused=True)


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.5)


def adam(params):
    return torch.optim.Adam(params, lr=0.02)


CONSTANT = {"gain_power": 0, "gain_scale": 0.1}
NO_KERNEL = {"fused": False, "state_dtype": torch.bfloat16, "bias_correction": False}
# What makes the optimizer, whether a WienerFilter is on it, and whether to call unscale_.
RUNS = {
    **{
        name: (partial(make, lr=0.02, **settings), False, False)
        for name, (make, settings) in FORMS.items()
    },
    "SGDF": (partial(SGDF, lr=0.1, weight_decay=0.01), False, False),
    "SGDF-foreach": (partial(SGDF, lr=0.1, foreach=True), False, False),
    "SGDF-unscale_": (partial(SGDF, lr=0.1), False, True),
    "FilterAdam": (partial(FilterAdam, lr=0.02), False, False),
    "FilterAdam-loop": (partial(FilterAdam, lr=0.02, foreach=False), False, False),
    "FilterAdamW": (partial(FilterAdamW, lr=0.02, weight_decay=0.1), False, False),
    "Momentum": (partial(Momentum, lr=0.05), False, False),
    "WienerFilter-SGD": (sgd, True, False),
    "WienerFilter-Adam": (adam, True, False),
    "WienerFilter-Adam-unscale_": (adam, True, True),
    "WienerFilter-fused-Adam-unscale_": (fused_adam, True, True),
    "WienerFilter-constant-fused-Adam-unscale_": (fused_adam, CONSTANT, True),
    "WienerFilter-foreach-SGD": (sgd, NO_KERNEL, False),
}
each_run = pytest.mark.parametrize(("make", "filtered", "unscale"), RUNS.values(), ids=RUNS)


@pytest.mark.parametrize("skipped", [None, 0, 3], ids=["none", "first", "later"])
@each_run
def test_scaled_steps_are_plain_steps_and_a_skipped_one_is_none(make, filtered, unscale, skipped):
    scaled, plain = Run(make, filtered), Run(make, filtered, scaled=False)
    for seed in range(STEPS):
        scaled.step(seed, unscale, overflow=seed == skipped)
        if seed != skipped:
            plain.step(seed)
    assert_close(scaled.everything(), plain.everything(), rtol=0, atol=0)
    assert scaled.everything()["optimizer"]
    assert bool(scaled.everything()["filter"]) == bool(filtered)
    # It grows after four steps in a row, and a skipped one halves it.
    assert scaled.scaler.get_scale() == {None: 2 * SCALE, 0: SCALE, 3: SCALE / 2}[skipped]


@pytest.mark.parametrize("overflow", [False, True], ids=["finite", "inf"])
def test_filter_refuses_gradients_that_a_fused_step_would_unscale(overflow):
    run = Run(fused_adam, filtered=True)
    before = run.everything()
    with pytest.raises(RuntimeError, match=r"call scaler\.unscale_\(optimizer\) before"):
        run.step(0, overflow=overflow)
    assert_close(run.everything(), before, rtol=0, atol=0)

"""The optimizers in float64 NumPy by `sgdf.filter.Filter`: what every path is held to."""

import numpy as np
import torch

from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum
from sgdf.filter import FLOAT64, Denominator, Filter, Moments, momentum
from sgdf.optim.settings import filter_settings

OPTIMIZERS = (SGDF, FilterAdam, FilterAdamW, Momentum)

#: Every setting, once away from its default.
COMMON = [
    {},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"maximize": True, "weight_decay": 0.1},
    {"lr": torch.tensor([[0.05]])},
    {"lr": torch.tensor(0.05), "weight_decay": 0.1, "decoupled_weight_decay": True},
]
FILTER = [
    {"gain_scale": 1.0},
    {"gain_scale": 1.0, "gain_power": 0.5},
    {"gain_scale": 1.0, "gain_power": 0.7},
    {"gain_scale": 0.0},
    {"correction": False},
    {"betas": (0.5, 0.9), "eps": 1e-2},
    {"betas": (0.0, 0.0)},
    {"eps": 0.0},
    {"gain_eps": 1e-2},
    {"bias_correction": False},
    {"gain_scale": 0.1, "gain_power": 0.0},
    {"gain_scale": 0.05, "gain_power": 0, "bias_correction": False},
]
#: FilterAdam without a second moment of its own.
LEAN = [
    {"second_moment": "derived"},
    {"second_moment": "derived", "betas": (0.9, 0.81)},
    {"second_moment": "derived", "betas": (0.5, 0.1), "gain_scale": 1.0, "gain_eps": 1e-3},
    {"second_moment": "derived", "gain_scale": 0.05, "gain_power": 0.0, "weight_decay": 0.1},
    {"second_moment": "derived", "gain_scale": 1.0, "bias_correction": False},
    {"second_moment": "fluctuation"},
    {"second_moment": "fluctuation", "gain_scale": 0.05, "gain_power": 0.0},
]
#: One of each form that keeps other moments than the paper's, for tests that cannot afford CASES.
FORMS = {
    "SGDF, constant gain": (SGDF, {"gain_scale": 0.1, "gain_power": 0.0}),
    "SGDF, no bias correction": (SGDF, {"gain_eps": 0.0, "bias_correction": False}),
    "FilterAdam, constant gain": (FilterAdam, {"gain_scale": 0.05, "gain_power": 0.0}),
    "FilterAdamW, derived": (FilterAdamW, {"second_moment": "derived"}),
    "FilterAdam, derived, constant gain": (
        FilterAdam,
        {"second_moment": "derived", "gain_scale": 0.05, "gain_power": 0.0},
    ),
    "FilterAdam, fluctuation": (FilterAdam, {"second_moment": "fluctuation"}),
}
OWN = {Momentum: [{"beta": 0.5, "mu": 0.5}, {"beta": 0.0}]}
CASES = [
    (optimizer, settings)
    for optimizer in OPTIMIZERS
    for settings in COMMON
    + OWN.get(optimizer, FILTER)
    + (LEAN if optimizer in (FilterAdam, FilterAdamW) else [])
]


class Reference:
    """One parameter under one optimizer: `step(gradient)` moves `self.p`."""

    def __init__(self, optimizer, p, group=0, numbers=FLOAT64):
        self.kind = type(optimizer)
        self.settings = settings = dict(optimizer.param_groups[group])
        self.p = np.array(p, dtype=np.float64)
        kind = settings.get("second_moment")
        denominator = kind and Denominator(kind, settings["eps"])
        of_filter = None if self.kind is Momentum else filter_settings(settings)
        self.filter = Filter(of_filter, denominator, numbers=numbers)

    def step(self, g):
        settings = self.settings
        lr, decay = float(settings["lr"]), settings["weight_decay"]
        g = np.array(g, dtype=np.float64) * (-1 if settings["maximize"] else 1)
        decoupled = settings["decoupled_weight_decay"]
        if not decoupled:
            g = g + decay * self.p
        shrink = 1 - lr * decay if decoupled else 1
        self.p = shrink * self.p - lr * self.direction(g)

    def direction(self, g):
        """What the step follows, given the gradient that the moments see."""
        if self.kind is Momentum:
            m = momentum(g, self.filter.moments.m, self.settings["beta"], self.settings["mu"])
            self.filter.moments = Moments(m)
            return m
        return self.filter(g)


def numpy(tensor):
    """A float64 array of a tensor of any dtype, complex numbers as pairs."""
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.double().numpy()


def noisy_run(parameters, optimizer, steps, seed=0, scale=1.0):
    """Step on random gradients, the references beside the optimizer; returns the references."""
    generator = torch.Generator().manual_seed(seed)
    references = {
        p: Reference(optimizer, numpy(p), group)
        for group, settings in enumerate(optimizer.param_groups)
        for p in settings["params"]
    }
    for _ in range(steps):
        for p in parameters:
            dtype = torch.complex128 if p.is_complex() else torch.float64
            g = 0.3 + torch.randn(p.shape, generator=generator, dtype=dtype)
            p.grad = torch.empty_like(p).copy_(scale * g)
        raw = [p.grad.clone() for p in parameters]
        optimizer.step()
        for p, g in zip(parameters, raw, strict=True):
            assert torch.equal(p.grad, g), "a gradient was changed in place"
            references[p].step(numpy(g))
    return references

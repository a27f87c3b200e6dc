"""What many tests set up: the paths of a step, random steps, and checkpoints through a file."""

import io

import pytest
import torch

from sgdf import WienerFilter

PATHS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
each_path = pytest.mark.parametrize("path", PATHS)


def advance(optimizer, steps, first=0):
    """Steps along random gradients, each with a seed of its own."""
    for seed in range(first, first + steps):
        generator = torch.Generator().manual_seed(seed)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def filtered_sgd(params, lr=0.1, **settings):
    """torch's SGD with the filter in front; its hook keeps the filter alive."""
    optimizer = torch.optim.SGD(params, lr=lr)
    WienerFilter(optimizer, **settings)
    return optimizer


def through_a_file(state_dict):
    """As `torch.save` and a safe `torch.load` leave it."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)

"""8-bit moments of a checkpoint, for parameters in another memory order."""

import pytest
import torch

from sgdf import SGDF
from sgdf.kernels.quantized import dequantize
from sgdf.optim.state import moment_in
from sgdf_lab.training.checkpoints import load_optimizer

ORDERS = {"rows": torch.contiguous_format, "channels last": torch.channels_last}


def parameter(order: str) -> torch.nn.Parameter:
    weights = torch.ones(32, 40, 3, 3)
    return torch.nn.Parameter(weights.to(memory_format=ORDERS[order]))


def stepped(order: str) -> tuple[torch.nn.Parameter, SGDF]:
    """One step; the magnitude of gradients differs from channel to channel."""
    p = parameter(order)
    optimizer = SGDF([p], lr=0.1, state_dtype=torch.int8)
    noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    p.grad = (noise * 10.0 ** torch.linspace(-3, 3, 40)[:, None, None]).to(
        memory_format=ORDERS[order]
    )
    optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("before", ORDERS)
@pytest.mark.parametrize("after", ORDERS)
def test_moments_keep_their_values(before, after):
    source, optimizer = stepped(before)
    saved = optimizer.state_dict()
    p = parameter(after)
    loaded = SGDF([p], lr=0.1, state_dtype=torch.int8)
    load_optimizer(loaded, saved)
    for key in ("exp_avg", "exp_var"):
        old, new = moment_in(optimizer.state[source], key), moment_in(loaded.state[p], key)
        assert new.codes.stride() == p.stride()
        if before == after:
            assert torch.equal(old.codes, new.codes)
            assert torch.equal(old.scale, new.scale)
        # A level is at most a sixteenth of its value, or an even part of the block's largest.
        values, scale = dequantize(old), dequantize(old).flatten(1).amax(1)
        error = (dequantize(new) - values).abs()
        limit = values.abs() / 16 + 2**-15 * scale[:, None, None, None]
        assert (error <= limit).all()

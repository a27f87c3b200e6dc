"""What many tests set up: paths of a step, parameters, random gradients, checkpoints in a file."""

import io

import pytest
import torch

from sgdf import WienerFilter

PATHS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
each_path = pytest.mark.parametrize("path", PATHS)
#: Triton's kernels run on a GPU, where their tests belong to `make test-gpu`, or are interpreted.
ON_GPU = torch.cuda.is_available()
TRITON_DEVICE = "cuda" if ON_GPU else "cpu"
TRITON_MARKS = [pytest.mark.gpu] if ON_GPU else []


def normal(shapes, dtype=torch.float32, seed=0, device="cpu"):
    """Parameters of these shapes, drawn at random."""
    generator = torch.Generator(device).manual_seed(seed)
    drawn = (torch.randn(shape, generator=generator, device=device) for shape in shapes)
    return [p.to(dtype).requires_grad_() for p in drawn]


def copies(params):
    """Parameters with the same values and layouts, and none of the gradients."""
    return [torch.empty_like(p).copy_(p).detach().requires_grad_() for p in params]


def set_gradients(params, seed, scale=1.0):
    """Random gradients, contiguous whatever the layout of a parameter is."""
    params = list(params)
    generator = torch.Generator(params[0].device).manual_seed(seed)
    for p in params:
        g = scale * torch.randn(p.shape, generator=generator, device=p.device)
        p.grad = g.to(p.dtype)


def advance(optimizer, steps, first=0):
    """Steps along random gradients, each with a seed of its own."""
    for seed in range(first, first + steps):
        set_gradients((p for group in optimizer.param_groups for p in group["params"]), seed)
        optimizer.step()


def filtered_sgd(params, lr=0.1, **settings):
    """torch's SGD with the filter in front; its hook keeps the filter alive."""
    optimizer = torch.optim.SGD(params, lr=lr)
    WienerFilter(optimizer, **settings)
    return optimizer


def assert_bitwise(ours, theirs):
    """Equal dtypes and values, of lists, dictionaries or tensors."""
    if not isinstance(ours, (dict, torch.Tensor)):
        ours, theirs = list(ours), list(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def through_a_file(state_dict):
    """As `torch.save` and a safe `torch.load` leave it."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)

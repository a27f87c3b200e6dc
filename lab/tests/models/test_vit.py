"""The vision transformer for small images: its size, its parts, and that it learns."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sgdf_lab import models
from sgdf_lab.models.vit import Attention, SmallViT
from sgdf_lab.support.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("classes", [10, 100])
def test_size(classes):
    width, tokens = 384, 64
    layer = 2 * 2 * width + 4 * (width * width + width) + 8 * width * width + 5 * width
    outside = 48 * width + width + tokens * width + 2 * width
    model = models.build_classifier("vit-small-cifar", classes=classes, shape=(3, 32, 32))
    expected = 6 * layer + outside + width * classes + classes
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8)])
def test_the_one_for_a_cpu_has_16_tokens_of_any_image(shape):
    model = models.build_classifier("vit-mini", classes=10, shape=shape)
    assert model.positions.shape == (1, 16, 64)
    assert model(torch.zeros(2, *shape)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) < 170_000


def test_attention_is_that_of_torch():
    torch.manual_seed(0)
    ours = Attention(12, 3).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.inputs.weight, ours.inputs.bias
    theirs.out_proj = ours.output
    tokens = torch.randn(2, 5, 12, dtype=torch.float64)
    expected, _ = theirs(tokens, tokens, tokens)
    torch.testing.assert_close(ours(tokens), expected)


def test_a_token_is_a_patch():
    """A pixel changes only the token of its patch; positions tell the tokens apart."""
    model = SmallViT(2, (1, 8, 8), width=8, depth=1, heads=2)
    seen = []
    model.layers.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image = torch.zeros(1, 1, 8, 8)
    model(image)
    image[0, 0, 1, 6] = 1
    model(image)
    changed = (seen[0] != seen[1]).any(-1)[0]
    assert changed.tolist() == [False, True, False, False]
    assert not torch.equal(seen[0][0, 0], seen[0][0, 3])


def test_layers_normalise_before_and_add():
    model = SmallViT(2, (1, 8, 8), width=8, depth=2, heads=2)
    for layer in model.layers:
        nn.init.zeros_(layer.attention[1].output.weight)
        nn.init.zeros_(layer.perceptron[3].weight)
    tokens = torch.randn(1, 4, 8)
    assert torch.equal(model.layers(tokens), tokens)
    assert isinstance(model.layers[0].attention[0], nn.LayerNorm)
    assert isinstance(model.layers[0].perceptron[0], nn.LayerNorm)


def test_it_has_second_derivatives():
    model = SmallViT(2, (1, 8, 8), width=8, depth=1, heads=2)
    loss = F.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([0, 1]))
    grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    again = torch.autograd.grad(sum(g.square().sum() for g in grads), list(model.parameters()))
    assert any(g.abs().max() > 0 for g in again)


def test_sides_that_do_not_fit():
    with pytest.raises(UserError, match="with sides that 4 divides, and these have 8x10: enlarge"):
        models.build_classifier("vit-small-cifar", classes=2, shape=(1, 8, 10))

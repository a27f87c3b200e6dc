"""A vision transformer for small images, trained from scratch.

An image is cut into square patches; each becomes a token, with a learned position. Layers
normalise before attention and before the two-layer perceptron, and add to what they took. The mean
of the tokens is classified.
"""

import torch
from torch import Tensor, nn

from sgdf_lab.support.errors import UserError


class SmallViT(nn.Module):
    """By default for CIFAR: 64 tokens of width 384, 6 layers with 6 heads, 10.7 million parameters.

    `patch` is the side of a patch in pixels, which divides those of the image; `heads` divide the
    width of a token.
    """

    def __init__(
        self,
        classes: int,
        shape: tuple[int, int, int] = (3, 32, 32),
        width: int = 384,
        depth: int = 6,
        heads: int = 6,
        patch: int = 4,
    ) -> None:
        super().__init__()
        channels, height, w = shape
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, (height // patch) * (w // patch), width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.apply(initialise)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = self.norm(self.layers(tokens + self.positions))
        logits: Tensor = self.head(tokens.mean(1))
        return logits


def vit_of_16_tokens(classes: int, shape: tuple[int, int, int]) -> SmallViT:
    """For a CPU: 4x4 patches whatever the image's size, 3 layers of width 64, 0.16 million
    parameters.

    >>> vit_of_16_tokens(10, (1, 28, 28)).positions.shape
    torch.Size([1, 16, 64])
    """
    _, height, width = shape
    if height != width:
        raise UserError(f"vit-mini takes square images, and these have {height}x{width} pixels")
    return SmallViT(classes, shape, width=64, depth=3, heads=4, patch=height // 4)


def vit_of_64_tokens(classes: int, shape: tuple[int, int, int]) -> SmallViT:
    """For CIFAR and comparisons of many runs: 4 layers of width 96, 0.46 million parameters.

    >>> sum(p.numel() for p in vit_of_64_tokens(10, (3, 32, 32)).parameters())
    459370
    """
    return SmallViT(classes, shape, width=96, depth=4, heads=4)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(tokens)
        changed: Tensor = tokens + self.perceptron(tokens)
        return changed


class Attention(nn.Module):
    """Attention of every token to all.

    Written out: torch's fused attention has no second derivative, which a Hessian needs, and saves
    little for so few tokens.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # image, head, token, feature
            for part in self.inputs(tokens).chunk(3, dim=-1)
        )
        weights = (queries * self.scale @ keys.transpose(-2, -1)).softmax(-1)
        changed: Tensor = self.output((weights @ values).transpose(1, 2).flatten(2))
        return changed


def initialise(module: nn.Module) -> None:
    """Weights as in the original: small, from a truncated normal distribution; biases zero."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)

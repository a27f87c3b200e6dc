"""A small convolutional network that learns CIFAR-10 in ten epochs (Jordan 2024, arXiv:2404.00498).

The first layer is fixed. Its 2x2 filters whiten the patches of the training images: they are the
eigenvectors of the patches' second moments, each divided by the root of its eigenvalue, with both
signs because GELU cuts one of them off. Three blocks of two 3x3 convolutions follow. Most of their
filters start as the identity, and their norms have a bias but no scale.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgdf_lab.support.errors import UserError

PATCH = 2  # pixels, the side of a whitened patch
WIDTHS = {"airbench": (64, 256, 256), "airbench-tiny": (8, 16, 16)}  # of the blocks
SMALLEST = 17  # pixels: what leaves one pixel after three blocks
OUTPUT_SCALE = 1 / 9
NORM_MOMENTUM = 0.4  # of the running statistics: the part of the newest batch
NORM_EPS = 1e-12
WHITENING_EPS = 5e-4  # added to eigenvalues, so that directions of no variance stay small


class FastNet(nn.Module):
    """The network; `whiten_` fixes its first layer."""

    def __init__(self, classes: int, shape: tuple[int, int, int], widths: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < SMALLEST or height != width:
            raise UserError(
                f"airbench takes square images from {SMALLEST}x{SMALLEST} pixels, and these have "
                f"{height}x{width}"
            )
        inputs = 2 * channels * PATCH**2
        self.whiten = nn.Conv2d(channels, inputs, PATCH)
        self.whiten.weight.requires_grad = False
        nn.init.zeros_(self.whiten.bias)  # type: ignore[arg-type]
        pairs = zip((inputs, *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(Block(before, after) for before, after in pairs))
        self.pool = nn.MaxPool2d((height - 1) // 2 ** len(widths))
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.blocks(F.gelu(self.whiten(images)))).flatten(1)
        logits: Tensor = self.head(features) * OUTPUT_SCALE
        return logits

    def norm_biases(self) -> list[nn.Parameter]:
        return [m.bias for m in self.modules() if isinstance(m, nn.BatchNorm2d)]


class Block(nn.Sequential):
    """Convolution, pooling, norm, GELU; convolution, norm, GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            convolution(inputs, outputs),
            nn.MaxPool2d(2),
            norm(outputs),
            nn.GELU(),
            convolution(outputs, outputs),
            norm(outputs),
            nn.GELU(),
        )


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3x3; the first `inputs` filters copy a channel each, the rest are torch's random ones."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[:inputs])
    return layer


def norm(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels, eps=NORM_EPS, momentum=NORM_MOMENTUM)
    layer.weight.requires_grad = False
    return layer


def build_fast_net(name: str, *, classes: int, shape: tuple[int, int, int]) -> FastNet:
    """The named network, with weights from torch's global RNG."""
    return FastNet(classes, shape, WIDTHS[name])


@torch.no_grad()
def whiten_(model: FastNet, images: Tensor) -> None:
    """Set the first layer from normalised images N x C x H x W."""
    weight = model.whiten.weight
    filters = whitening_filters(images.double()).reshape(-1, *weight.shape[1:])
    weight.copy_(torch.cat((filters, -filters)))


def whitening_filters(images: Tensor) -> Tensor:
    """A row for each direction, largest variance first; the mean is not removed."""
    patches = F.unfold(images, PATCH).transpose(1, 2).flatten(0, 1)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    return (vectors / (values.clamp_min(0) + WHITENING_EPS).sqrt()).T.flip(0)

"""DCGAN: a generator of images and a critic that scores them, for WGAN-GP.

Both halve or double the image at every layer but the one next to 4x4 pixels, with twice the
channels for half the side. The critic has batch norm, as in DCGAN and the published protocol: a
score then depends on the other images of the batch, while the gradient penalty is per image. The
WGAN-GP paper leaves batch norm out for that reason; `norm="layer"` has layer norm instead.
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sgdf_lab.support.errors import unknown

Z = 100  # length of the noise vector of an image
CRITIC_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "layer": lambda channels: nn.GroupNorm(1, channels),  # over all of one image
}


def widths(width: int, size: int) -> list[int]:
    """Channels of the layers from the largest image to the smallest, of 4x4 pixels."""
    layers = (size // 4).bit_length() - 1
    return [width << layer for layer in range(layers)]


class Generator(nn.Module):
    """From N x Z noise to N x 3 x `size` x `size` images between -1 and 1."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        channels = widths(width, size)[::-1]
        layers: list[nn.Module] = [nn.ConvTranspose2d(Z, channels[0], 4, bias=False)]
        for inputs, outputs in zip(channels, [*channels[1:], 3], strict=True):
            layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
            layers.append(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False))
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        images: Tensor = self.layers(z[:, :, None, None])
        return images


class Critic(nn.Module):
    """From images to one score each: the higher, the more real."""

    def __init__(self, width: int, size: int, norm: str) -> None:
        super().__init__()
        if not isinstance(norm, str) or norm not in CRITIC_NORMS:
            raise unknown("critic_norm", str(norm), CRITIC_NORMS)
        channels = widths(width, size)
        layers: list[nn.Module] = [nn.Conv2d(3, channels[0], 4, 2, 1, bias=False)]
        for inputs, outputs in itertools.pairwise(channels):
            layers += [nn.LeakyReLU(0.2), nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)]
            layers.append(CRITIC_NORMS[norm](outputs))
        layers += [nn.LeakyReLU(0.2), nn.Conv2d(channels[-1], 1, 4, bias=False)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores.flatten()


class DCGAN(nn.Module):
    """The two networks, for images of `size` x `size` pixels.

    >>> gan = DCGAN(width=8, size=16)
    >>> images = gan.generator(torch.zeros(2, Z))
    >>> images.shape, gan.critic(images).shape
    (torch.Size([2, 3, 16, 16]), torch.Size([2]))
    """

    def __init__(self, width: int = 64, size: int = 64, norm: str = "batch") -> None:
        super().__init__()
        self.size = size
        self.generator = Generator(width, size)
        self.critic = Critic(width, size, norm)
        self.apply(draw_weights)


@torch.no_grad()
def draw_weights(module: nn.Module) -> None:
    """As in the DCGAN paper: from N(0, 0.02), and the norms' scales from N(1, 0.02)."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        module.weight.normal_(0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
        module.weight.normal_(1.0, 0.02)


MODELS: dict[str, Callable[[str], DCGAN]] = {
    "dcgan": lambda norm: DCGAN(norm=norm),
    "dcgan-tiny": lambda norm: DCGAN(width=8, size=16, norm=norm),
}

"""What the tests of WGAN-GP need, in their own process and in those they start."""

import torch
from torch import Tensor, nn

from data import published
from sgdf_lab.data import cifar
from sgdf_lab.data.dataset import data_folder
from sgdf_lab.paper.gan import dcgan


class Features(nn.Module):
    """Six numbers of an image, by weights that are always the same."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(6, 48, generator=torch.Generator().manual_seed(1))
        self.register_buffer("weight", weight)

    def forward(self, images: Tensor) -> Tensor:
        colours = nn.functional.adaptive_avg_pool2d(images.float() / 255, 4).flatten(1)
        return (colours @ self.weight.T).tanh()


class OneNumber(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean()


class Fails(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError("not today")


class NotFinite(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean((2, 3)) / 0


def no_network() -> int:
    return 3


def without_batch_norm() -> None:
    """Which is over the images of one process: without it, two do exactly what one does."""
    make = dcgan.MODELS["dcgan-tiny"]

    def made(norm: str) -> dcgan.DCGAN:
        model = make(norm)
        for i, layer in enumerate(model.generator.layers):
            if isinstance(layer, nn.BatchNorm2d):
                model.generator.layers[i] = nn.Identity()
            elif isinstance(layer, nn.ConvTranspose2d):
                layer.weight.data.mul_(5)  # as large as they are with it, about
        return model

    dcgan.MODELS["dcgan-tiny"] = made


def few_images() -> None:
    """A CIFAR-10 of 50 images, in the data folder."""
    cifar.CIFAR10 = published.TINY["cifar10"]
    for batch in (data_folder(None) / "cifar10" / "cifar-10-batches-py").iterdir():
        published.trust(batch)

"""`sgdf` with a CIFAR-10 of a few images, and what the tests of WGAN-GP need beside it.

python gan_driver.py [without-batch-norm | killed] train wgan-gp ...
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))
from lab.data import published
from lab.runs.interrupted import interrupt
from sgdf.lab.data import DATASETS
from sgdf.lab.models import dcgan


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


if __name__ == "__main__":
    from sgdf.cli.main import leave, main

    DATASETS["cifar10"] = published.TINY["cifar10"]
    words = sys.argv[1:]
    if words[0] == "without-batch-norm":
        without_batch_norm()
    elif words[0] == "killed":
        out = words[words.index("--out") + 1]
        interrupt("SIGKILL", "self", "replace last.pt", "4", out)  # of the fifth epoch
    leave(main(words[words.index("train") :]))

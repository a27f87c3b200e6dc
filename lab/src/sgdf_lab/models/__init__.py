"""Classifiers of small images: of the paper's CIFAR tables, transformers, small ones for a CPU."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from sgdf_lab.models.densenet import DenseNet
from sgdf_lab.models.own import ImageShape, build_own, is_own
from sgdf_lab.models.resnet import ResNet
from sgdf_lab.models.small import small_cnn, small_mlp
from sgdf_lab.models.vgg import VGG11
from sgdf_lab.models.vit import SmallViT, vit_of_16_tokens
from sgdf_lab.support.errors import UserError, unknown


class ClassifierRow(NamedTuple):
    """How a network is built, and the images that it can take, in pixels."""

    builder: Callable[[int, ImageShape], nn.Module]
    smallest: int  # the shortest side
    multiple: int = 1  # divides both sides

    def takes(self, height: int, width: int) -> bool:
        divides = height % self.multiple == width % self.multiple == 0
        return divides and min(height, width) >= self.smallest


MODELS = {
    "vgg11": ClassifierRow(lambda classes, shape: VGG11(classes, shape[0]), 32),
    "resnet18": ClassifierRow(lambda classes, shape: ResNet((2, 2, 2, 2), classes, shape[0]), 8),
    "resnet34": ClassifierRow(lambda classes, shape: ResNet((3, 4, 6, 3), classes, shape[0]), 8),
    "densenet121": ClassifierRow(
        lambda classes, shape: DenseNet((6, 12, 24, 16), classes, shape[0]), 8
    ),
    "vit-small-cifar": ClassifierRow(SmallViT, 4, 4),
    "vit-mini": ClassifierRow(vit_of_16_tokens, 4, 4),
    "cnn": ClassifierRow(lambda classes, shape: small_cnn(classes, shape[0]), 8),
    "mlp": ClassifierRow(small_mlp, 1),
}
NAMES = tuple(MODELS)


def build_classifier(name: str, *, classes: int, shape: ImageShape) -> nn.Module:
    """The named network for images of `shape`, with weights from torch's global RNG.

    A name is one of `NAMES`, or `package.module:function` of a user's own.

    >>> import torch
    >>> model = build_classifier("cnn", classes=10, shape=(1, 28, 28))
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if is_own(name):
        return build_own(name, classes=classes, shape=shape)
    if name not in MODELS:
        raise unknown("model", name, NAMES)
    row = MODELS[name]
    _, height, width = shape
    if not row.takes(height, width):
        sides = f" with sides that {row.multiple} divides" if row.multiple > 1 else ""
        fitting = ", ".join(n for n in NAMES if MODELS[n].takes(height, width))
        raise UserError(
            f"{name} takes images from {row.smallest}x{row.smallest} pixels{sides}, and these have "
            f"{height}x{width}: enlarge them, or choose {fitting}"
        )
    return row.builder(classes, shape)

"""The networks of the paper's CIFAR tables, and two small ones for the CPU."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from sgdf.lab.models.densenet import DenseNet
from sgdf.lab.models.resnet import ResNet
from sgdf.lab.models.small import cnn, mlp
from sgdf.lab.models.vgg import VGG11
from sgdf.support import errors

Shape = tuple[int, int, int]


class Model(NamedTuple):
    """How a network is made, and the smallest image side it can take."""

    make: Callable[[int, Shape], nn.Module]
    smallest: int


MODELS = {
    "vgg11": Model(lambda classes, shape: VGG11(classes, shape[0]), 32),
    "resnet18": Model(lambda classes, shape: ResNet((2, 2, 2, 2), classes, shape[0]), 8),
    "resnet34": Model(lambda classes, shape: ResNet((3, 4, 6, 3), classes, shape[0]), 8),
    "densenet121": Model(lambda classes, shape: DenseNet((6, 12, 24, 16), classes, shape[0]), 8),
    "cnn": Model(lambda classes, shape: cnn(classes, shape[0]), 8),
    "mlp": Model(mlp, 1),
}
NAMES = tuple(MODELS)


def build(name: str, *, classes: int, shape: Shape) -> nn.Module:
    """The named network for images of `shape` (C, H, W), with weights from torch's global RNG.

    >>> import torch
    >>> model = build("cnn", classes=10, shape=(1, 28, 28))
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if name not in MODELS:
        raise errors.unknown("model", name, NAMES)
    model = MODELS[name]
    _, height, width = shape
    if min(height, width) < model.smallest:
        fitting = ", ".join(n for n in NAMES if MODELS[n].smallest <= min(height, width))
        raise errors.UserError(
            f"{name} takes images from {model.smallest}x{model.smallest} pixels, and these have "
            f"{height}x{width}: enlarge them, or choose {fitting}"
        )
    return model.make(classes, shape)

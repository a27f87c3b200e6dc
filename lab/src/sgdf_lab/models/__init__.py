"""Classifiers of small images: of the paper's CIFAR tables, transformers, small ones for a CPU."""

from torch import nn

from sgdf_lab import plugins
from sgdf_lab.models.densenet import DenseNet
from sgdf_lab.models.own import ImageShape, build_own, is_own
from sgdf_lab.models.resnet import ResNet
from sgdf_lab.models.small import small_cnn
from sgdf_lab.models.vgg import VGG11
from sgdf_lab.registry.models import CLASSIFIERS
from sgdf_lab.support.errors import UserError, unknown

MODELS = CLASSIFIERS
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
    model: nn.Module = plugins.load_own(row.builder)(classes, shape)
    return model


# Builders that rows name.


def vgg11(classes: int, shape: ImageShape) -> nn.Module:
    return VGG11(classes, shape[0])


def resnet18(classes: int, shape: ImageShape) -> nn.Module:
    return ResNet((2, 2, 2, 2), classes, shape[0])


def resnet34(classes: int, shape: ImageShape) -> nn.Module:
    return ResNet((3, 4, 6, 3), classes, shape[0])


def densenet121(classes: int, shape: ImageShape) -> nn.Module:
    return DenseNet((6, 12, 24, 16), classes, shape[0])


def cnn(classes: int, shape: ImageShape) -> nn.Module:
    return small_cnn(classes, shape[0])

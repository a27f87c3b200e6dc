"""Convolutional classifiers of small images: VGG11, ResNet, DenseNet, and three that a CPU trains
in seconds to minutes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ImageShape = tuple[int, int, int]  # channels, height, width

# --- builders that rows of the registry name ------------------------------------------------------


def vgg11(classes: int, shape: ImageShape) -> nn.Module:
    return VGG11(classes, shape[0])


def resnet18(classes: int, shape: ImageShape) -> nn.Module:
    return ResNet((2, 2, 2, 2), classes, shape[0])


def resnet34(classes: int, shape: ImageShape) -> nn.Module:
    return ResNet((3, 4, 6, 3), classes, shape[0])


def densenet121(classes: int, shape: ImageShape) -> nn.Module:
    return DenseNet((6, 12, 24, 16), classes, shape[0])


# --- VGG11 without batch norm, in the two forms of the published CIFAR experiments ----------------

# Output channels of the 3x3 convolutions; 0 is a 2x2 pooling. Five poolings: 32 pixels become 1.
LAYERS = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)


class VGG11(nn.Module):
    """Eight convolutions and three linear layers.

    The number of classes chooses the head, as the published code has one per dataset: 100
    classes get CIFAR-100's (`late_dropout`), any other number CIFAR-10's (`early_dropout`).
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.features = features(channels)
        self.pool = nn.AdaptiveAvgPool2d(1)  # leaves 1x1 as it is; for images from 64x64
        self.head = late_dropout(classes) if classes == 100 else early_dropout(classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)).flatten(1))


def features(channels: int) -> nn.Sequential:
    """The convolutions, in both forms with variance 2 / (k k out) and zero bias."""
    layers: list[nn.Module] = []
    for width in LAYERS:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        conv = nn.Conv2d(channels, width, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
        layers += [conv, nn.ReLU(inplace=True)]
        channels = width
    return nn.Sequential(*layers)


def early_dropout(classes: int) -> nn.Sequential:
    """CIFAR-10's head: dropout before each hidden layer, weights as torch draws them."""
    return nn.Sequential(
        nn.Dropout(),
        nn.Linear(512, 512),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(512, 512),
        nn.ReLU(inplace=True),
        nn.Linear(512, classes),
    )


def late_dropout(classes: int) -> nn.Sequential:
    """CIFAR-100's head: dropout after each hidden layer, weights with std 0.01, zero bias."""
    head = nn.Sequential(
        nn.Linear(512, 512),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(512, 512),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(512, classes),
    )
    for layer in head:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
            nn.init.zeros_(layer.bias)
    return head


# --- ResNet: a 3x3 stem of stride 1, no pooling before the blocks ---------------------------------

WIDTHS = (64, 128, 256, 512)


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which projects where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """`depths` blocks at each of four widths; every width but the first halves the image."""

    def __init__(self, depths: tuple[int, ...], classes: int, channels: int) -> None:
        super().__init__()
        self.stem = conv(channels, WIDTHS[0], 3)
        self.bn = nn.BatchNorm2d(WIDTHS[0])
        blocks = []
        inputs = WIDTHS[0]
        for depth, width in zip(depths, WIDTHS, strict=True):
            for index in range(depth):
                stride = 2 if index == 0 and width != WIDTHS[0] else 1
                blocks.append(ResidualBlock(inputs, width, stride))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)  # 32x32 images arrive as the published 4x4 maps
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.stem(x)), inplace=True)
        return self.head(self.pool(self.blocks(y)).flatten(1))


# --- DenseNet: a plain 3x3 stem, then dense blocks joined by halving layers -----------------------

GROWTH = 32


class DenseLayer(nn.Module):
    """Adds GROWTH channels to its input, through a bottleneck of four times as many."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * GROWTH, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * GROWTH)
        self.conv2 = nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.bn1(x), inplace=True))
        y = self.conv2(F.relu(self.bn2(y), inplace=True))
        return torch.cat([y, x], 1)


class Transition(nn.Module):
    """Halves the channels and the image."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x), inplace=True)), 2)


class DenseNet(nn.Module):
    """Dense blocks of the given depths; depths 6, 12, 24, 16 are DenseNet121."""

    def __init__(self, depths: tuple[int, ...], classes: int, channels: int) -> None:
        super().__init__()
        width = 2 * GROWTH
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        for index, depth in enumerate(depths):
            if index > 0:
                layers.append(Transition(width))
                width //= 2
            for _ in range(depth):
                layers.append(DenseLayer(width))
                width += GROWTH
        self.features = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(width)
        self.pool = nn.AdaptiveAvgPool2d(1)  # 32x32 images arrive as the published 4x4 maps
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.features(x)), inplace=True)
        return self.head(self.pool(y).flatten(1))


# --- small ones -----------------------------------------------------------------------------------


def cnn(classes: int, shape: ImageShape) -> nn.Module:
    """Three 3x3 convolutions and a global average: about 57,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def cnn_with_batch_norm(classes: int, shape: ImageShape) -> nn.Module:
    """Three stages of two 3x3 convolutions, the second of which halves the image: 0.29 million
    parameters."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in (32, 64, 128):
        for stride in (1, 2):
            layers += [conv(channels, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
    return nn.Sequential(*layers, Mean(), nn.Linear(channels, classes))


class Mean(nn.Module):
    """The mean over an image. torch's pooling to 1x1 has no rule for vmap in channels_last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))


def small_mlp(classes: int, shape: ImageShape) -> nn.Module:
    """Two hidden layers, of 64 and 32 units: the network of `sgdf demo`."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * width, 64),
        nn.ReLU(inplace=True),
        nn.Linear(64, 32),
        nn.ReLU(inplace=True),
        nn.Linear(32, classes),
    )

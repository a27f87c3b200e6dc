"""DenseNet for small images: a plain 3x3 stem, then dense blocks joined by halving layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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

"""Networks without batch norm that a CPU trains in seconds to minutes."""

from torch import nn


def small_cnn(classes: int, channels: int) -> nn.Module:
    """Three 3x3 convolutions and a global average: about 57,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
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


def small_mlp(classes: int, shape: tuple[int, int, int]) -> nn.Module:
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

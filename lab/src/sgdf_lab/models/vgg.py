"""VGG11 without batch norm, in the two forms the published CIFAR experiments use."""

from torch import Tensor, nn

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

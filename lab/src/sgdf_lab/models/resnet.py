"""ResNet for small images: a 3x3 stem of stride 1, no pooling before the blocks."""

from torch import Tensor, nn
from torch.nn import functional as F

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

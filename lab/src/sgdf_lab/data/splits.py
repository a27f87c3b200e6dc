"""A dataset in memory: images and labels of a training and a test split."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images, uint8, N x C x H x W, and their labels, int64."""

    images: Tensor
    labels: Tensor


Splits = tuple[Split, Split]  # training, test


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


def as_split(images: NDArray[np.uint8], labels: Any) -> Split:
    """A split from numpy arrays, which it may share memory with."""
    return Split(
        torch.from_numpy(np.require(images, np.uint8, ["C", "W"])),
        torch.from_numpy(np.require(labels, np.int64, ["C", "W"])),
    )

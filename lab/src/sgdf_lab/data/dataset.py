"""What every dataset has, however it is stored: its facts, its folder, its splits in memory."""

import os
import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(ABC):
    """What is known about a dataset without reading it, and how to find and fetch it."""

    name: str
    train: int  # number of images
    test: int
    classes: int

    @abstractmethod
    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        """Whether it is in the data folder ("yes", "half" or "no"), and where, or how to get it.

        Looks at the names of files only.
        """

    @abstractmethod
    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        """Download it into the data folder, unless it is there; returns a sentence to print."""


def data_folder(folder: str | Path | None) -> Path:
    """The given folder, or SGDF_DATA, or ~/.cache/sgdf/data."""
    return Path(folder or os.environ.get("SGDF_DATA") or "~/.cache/sgdf/data").expanduser()


def fetch_command(name: str, folder: Path) -> str:
    """The command that puts a dataset into the folder."""
    option = "" if folder == data_folder(None) else f" --data-dir {shlex.quote(str(folder))}"
    return f"sgdf data fetch {name}{option}"


# --- in memory ------------------------------------------------------------------------------------


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

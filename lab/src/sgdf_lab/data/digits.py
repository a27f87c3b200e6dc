"""scikit-learn's handwritten digits: they come with the package, and need no files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sgdf_lab.data.arrays import ArrayDataset, Layout, Source
from sgdf_lab.data.dataset import Splits, as_split

if TYPE_CHECKING:
    from rich.console import Console

TRAIN, TEST = 1437, 360


def read_digits(_: Path) -> Splits:
    """8 x 8 pixels of 17 greys, in a split that never changes."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    # The raw stream of PCG64 is the one that numpy promises never to change.
    order = np.argsort(np.random.PCG64(0).random_raw(len(images)), kind="stable")
    train, test = np.split(order, [TRAIN])
    return as_split(images[train], bunch.target[train]), as_split(images[test], bunch.target[test])


class Package(Source):
    """An installed package instead of files."""

    def __str__(self) -> str:
        return self.layout.phrase


@dataclass(frozen=True, kw_only=True)
class Digits(ArrayDataset):
    def sources(self, folder: Path) -> Iterator[Source]:
        yield Package(Layout("", "scikit-learn", read_digits), Path("scikit-learn's digits"))

    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        return "digits come with scikit-learn: there is nothing to fetch"


DATASET = Digits(
    name="digits",
    train=TRAIN,
    test=TEST,
    classes=10,
    shape=(1, 8, 8),
    mean=(0.0,),
    std=(1.0,),
    balanced=False,
)

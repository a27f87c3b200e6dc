"""A small stand-in for a dataset: the same image shape and classes, and learnable."""

import zlib

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.splits import Split, Splits, as_split

TRAIN, TEST = 2048, 512
GRID = 4  # the pattern of a class is a mosaic of GRID x GRID colours
MISLABELLED = 8  # one image in so many shows the pattern of a class drawn at random


def make_splits(name: str, classes: int, shape: tuple[int, int, int]) -> Splits:
    """The mosaic of each class, averaged with noise: a training and a test split.

    Integers from the raw stream of PCG64: every machine makes the same images.
    """
    channels, height, width = shape
    stream = np.random.PCG64(zlib.crc32(name.encode()))
    mosaics = _random_bytes(stream, (classes, channels, GRID, GRID))
    patterns = mosaics.repeat(height // GRID, axis=2).repeat(width // GRID, axis=3)

    def split(count: int) -> Split:
        order = np.argsort(stream.random_raw(count), kind="stable")
        labels = (np.arange(count, dtype=np.int64) % classes)[order]
        shown = labels.copy()
        shown[::MISLABELLED] = stream.random_raw(len(shown[::MISLABELLED])) % classes
        noise = _random_bytes(stream, (count, *shape))
        images = (patterns[shown].astype(np.uint16) + noise) // 2
        return as_split(images.astype(np.uint8), labels)

    return split(TRAIN), split(TEST)


def _random_bytes(stream: np.random.PCG64, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    count = int(np.prod(shape))
    raw = stream.random_raw(-(-count // 8)).astype("<u8")
    return raw.view(np.uint8)[:count].reshape(shape)

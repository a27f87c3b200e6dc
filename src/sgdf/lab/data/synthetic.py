"""A small stand-in for a dataset: the same shape and classes, learnable, made in a moment."""

import zlib

import numpy as np
import torch
from numpy.typing import NDArray

from sgdf.lab.data.sets import FACTS, Split

TRAIN, TEST = 2048, 512
GRID = 4  # the pattern of a class is a mosaic of GRID x GRID colours
STRANGERS = 8  # one image in so many shows the pattern of a class drawn at random


def make(name: str) -> tuple[Split, Split]:
    """The class's mosaic, half drowned in noise: a training and a test split.

    Whole numbers from the raw stream of PCG64, so that every machine makes the same images.
    """
    facts = FACTS[name]
    channels, height, width = facts.shape
    stream = np.random.PCG64(zlib.crc32(name.encode()))
    mosaics = _bytes(stream, (facts.classes, channels, GRID, GRID))
    patterns = mosaics.repeat(height // GRID, axis=2).repeat(width // GRID, axis=3)

    def split(count: int) -> Split:
        order = np.argsort(stream.random_raw(count), kind="stable")
        labels = (np.arange(count, dtype=np.int64) % facts.classes)[order]
        shown = labels.copy()
        shown[::STRANGERS] = stream.random_raw(len(shown[::STRANGERS])) % facts.classes
        noise = _bytes(stream, (count, *facts.shape))
        images = (patterns[shown].astype(np.uint16) + noise) // 2
        return Split(torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels))

    return split(TRAIN), split(TEST)


def _bytes(stream: np.random.PCG64, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    count = int(np.prod(shape))
    raw = stream.random_raw(-(-count // 8)).astype("<u8")
    return raw.view(np.uint8)[:count].reshape(shape)

"""Learnable stand-ins that need no download: small images of any shape, and text.

Both come from the raw stream of PCG64: every machine makes the same ones.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.dataset import Split, Splits, as_split

TRAIN, TEST = 2048, 512
GRID = 4  # the pattern of a class is a mosaic of GRID x GRID colours
MISLABELLED = 8  # one of this many images shows the pattern of a class drawn at random


def make_splits(name: str, classes: int, shape: tuple[int, int, int]) -> Splits:
    """The mosaic of each class, averaged with noise: a training and a test split."""
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


# --- text of a small grammar ----------------------------------------------------------------------

TEXT_LENGTH = 1 << 17  # bytes
TEXT_SEED = 20260101

SUBJECTS = ("the fox", "a heron", "the miller", "my sister", "an old clock", "the river", "nobody")
VERBS = ("sees", "follows", "forgets", "carries", "wakes", "draws", "waits for")
OBJECTS = ("the moon", "a letter", "three stones", "the garden", "her shadow", "a small boat")
PLACES = ("in the rain", "near the mill", "at night", "behind the hill", "without a sound")
ENDINGS = (". ", ".\n", "; ", ", and then ")
SLOTS = (SUBJECTS, VERBS, OBJECTS, PLACES, ENDINGS)


def make_text(length: int = TEXT_LENGTH) -> NDArray[np.uint8]:
    """The first `length` bytes of an endless text.

    A verb depends on the subject and the place on the object, so that a longer memory predicts
    better.

    >>> bytes(make_text(40)).decode()
    'nobody waits for three stones behind the'
    """
    stream = np.random.PCG64(TEXT_SEED)
    parts: list[str] = []
    size = 0
    while size < length:
        draws = [int(number >> np.uint64(8)) for number in stream.random_raw(len(SLOTS))]
        subject, verb, thing, place, ending = draws
        chosen = (
            SUBJECTS[subject % len(SUBJECTS)],
            VERBS[(subject + verb % 2) % len(VERBS)],  # one of two that this subject takes
            OBJECTS[thing % len(OBJECTS)],
            PLACES[(thing % len(OBJECTS) + place % 2) % len(PLACES)],
        )
        sentence = " ".join(chosen) + ENDINGS[ending % len(ENDINGS)]
        parts.append(sentence)
        size += len(sentence)
    return np.frombuffer("".join(parts).encode()[:length], dtype=np.uint8)

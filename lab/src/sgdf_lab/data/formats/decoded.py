"""A cache of decoded images: a dataset as one .npz file."""

import contextlib
from pathlib import Path

import numpy as np
import torch

from sgdf_lab.data.splits import Splits, as_split
from sgdf_lab.data.verify import DamagedData
from sgdf_lab.support.files import replacing


def read_decoded(path: Path) -> Splits:
    """What `keep_decoded` wrote."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = (
                as_split(arrays[f"{part}_images"], arrays[f"{part}_labels"])
                for part in ("train", "test")
            )
    except Exception as error:  # a damaged zip file fails in many ways
        raise DamagedData(path, f"is damaged ({error})") from error
    return train, test


def keep_decoded(splits: Splits, path: Path) -> None:
    """Write the cache, atomically; without it, if the folder is read-only or the disk is full."""
    arrays = {}
    for part, split in zip(("train", "test"), splits, strict=True):
        arrays[f"{part}_images"] = split.images.numpy()
        arrays[f"{part}_labels"] = split.labels.to(torch.uint8).numpy()
    with contextlib.suppress(OSError), replacing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]

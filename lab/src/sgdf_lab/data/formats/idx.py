"""IDX files, as MNIST and its successors are published in."""

import gzip
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.formats.members import plain_or_gzipped
from sgdf_lab.data.splits import Splits, as_split
from sgdf_lab.data.verify import DamagedData

IDX_FILES = tuple(
    f"{split}-{kind}-ubyte"
    for split in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)


def read_idx_files(folder: Path) -> Splits:
    """The four files of a dataset, gzipped or not."""
    train_images, train_labels, test_images, test_labels = (
        _read_array(folder / name, dimensions)
        for name, dimensions in zip(IDX_FILES, (3, 1, 3, 1), strict=True)
    )
    return (
        as_split(train_images[:, None], train_labels),
        as_split(test_images[:, None], test_labels),
    )


def _read_array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Two zero bytes, 8 for bytes, the number of dimensions, their sizes, the data."""
    file_path = plain_or_gzipped(path)
    if not file_path:
        raise DamagedData(path, "is missing")
    open_file: Callable[[Path], Any] = gzip.open if file_path.suffix == ".gz" else open
    try:
        with open_file(file_path, "rb") as file:  # type: ignore[call-arg]
            content = file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedData(file_path, f"is damaged ({error})") from error
    if content[:4] != bytes((0, 0, 8, dimensions)):
        raise DamagedData(file_path, "is not an idx file of bytes")
    data = content[4 + 4 * dimensions :]
    shape = np.frombuffer(content[4 : 4 + 4 * dimensions], ">u4").tolist()
    if len(shape) != dimensions or len(data) != math.prod(shape):
        raise DamagedData(file_path, f"is cut short: {len(data)} bytes of data")
    return np.frombuffer(data, np.uint8).reshape(shape)

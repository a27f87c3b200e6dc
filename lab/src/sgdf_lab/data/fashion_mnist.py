"""Fashion-MNIST: 28 x 28 greys, as IDX files from Zalando or from a Debian package."""

import gzip
import math
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.archive import SCRATCH, DamagedData, plain_or_gzipped
from sgdf_lab.data.arrays import ArrayDataset, Layout
from sgdf_lab.data.dataset import Splits, as_split
from sgdf_lab.data.fetch import Remote, find_tool, run_tool

if TYPE_CHECKING:
    from rich.console import Console

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


# --- the dataset ----------------------------------------------------------------------------------

SERVER = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
CHECKSUMS = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
DEBIAN = "dataset-fashion-mnist"  # a Debian package, and where it installs its files:
DEBIAN_ROOT = "/usr/share/datasets/fashion-mnist"


def fetch_from_debian(home: Path, console: "Console") -> None:
    apt, dpkg = find_tool("apt-get", home.name), find_tool("dpkg-deb", home.name)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=home) as temporary:
        run_tool([apt, "download", DEBIAN], temporary, console)
        package = next(Path(temporary).glob("*.deb"))
        run_tool([dpkg, "-x", str(package), "unpacked"], temporary, console)
        Path(f"{temporary}/unpacked{DEBIAN_ROOT}").replace(home / DEBIAN)


DATASET = ArrayDataset(
    name="fashion-mnist",
    train=60000,
    test=10000,
    classes=10,
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    layouts=(
        Layout(".", "the idx files in", read_idx_files, files=IDX_FILES),
        Layout(DEBIAN, "the idx files in", read_idx_files),
    ),
    folders=(Path(DEBIAN_ROOT),),
    remotes=tuple(
        Remote(f"{SERVER}/{name}.gz", md5) for name, md5 in zip(IDX_FILES, CHECKSUMS, strict=True)
    ),
    fallback=fetch_from_debian,
)

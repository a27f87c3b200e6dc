"""Fashion-MNIST: 28 x 28 greys, as IDX files from Zalando or from a Debian package."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.data.arrays import ArrayDataset
from sgdf_lab.data.fetch import Remote, find_tool, run_tool
from sgdf_lab.data.formats.idx import IDX_FILES, read_idx_files
from sgdf_lab.data.forms import Form
from sgdf_lab.data.unpack import SCRATCH

if TYPE_CHECKING:
    from rich.console import Console

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
    order=2,
    train=60000,
    test=10000,
    classes=10,
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    forms=(
        Form(".", "the idx files in", read_idx_files, files=IDX_FILES),
        Form(DEBIAN, "the idx files in", read_idx_files),
    ),
    folders=(Path(DEBIAN_ROOT),),
    remotes=tuple(
        Remote(f"{SERVER}/{name}.gz", md5) for name, md5 in zip(IDX_FILES, CHECKSUMS, strict=True)
    ),
    fallback=fetch_from_debian,
)

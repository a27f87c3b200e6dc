"""Datasets whose images are files, in their official layouts; they are decoded while training.

The lab does not download them: it says where they come from and how their folder has to look.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.location import data_folder
from sgdf_lab.data.spec import DatasetSpec
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

LabelledNames = list[tuple[str, int]]  # names of files, relative to the dataset's folder; labels
Listing = tuple[LabelledNames, LabelledNames, tuple[str, ...]]  # training, test, names of classes


@dataclass(frozen=True)
class ImageFiles:
    """Images by name, and their labels.

    The names are one array: a list of a million would be copied page by page into every process
    that only reads it.
    """

    folder: Path
    names: NDArray[np.bytes_]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return os.fsdecode(bytes(self.names[index]))

    def path(self, index: int) -> Path:
        return self.folder / self.name(index)

    def only(self, index: NDArray[np.int64]) -> "ImageFiles":
        return ImageFiles(self.folder, self.names[index], self.labels[index])


@dataclass(frozen=True)
class FileDataset:
    """A dataset on the disk; `classes` are the names of the labels 0, 1, ..."""

    name: str
    train: ImageFiles
    test: ImageFiles
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImageFolderDataset(DatasetSpec):
    """A dataset that a user unpacks.

    Args:
        parts: files and folders that have to be in its folder.
        layout: in words, what its folder "holds".
        origin: where to get it.
        reader: lists the images in its folder.
        other_name: another usual name of its folder.
    """

    parts: tuple[str, ...]
    layout: str
    origin: str
    reader: Callable[[Path], Listing]
    other_name: str = ""

    def home(self, folder: str | Path | None = None) -> Path | None:
        """Its folder: one of its names in the data folder, or the data folder itself."""
        for candidate in self._candidates(data_folder(folder)):
            if not self._missing(candidate):
                return candidate
        return None

    def find(self, folder: str | Path | None = None) -> Path:
        """As `home`; a UserError if it is not there, or incomplete."""
        if home := self.home(folder):
            return home
        root = data_folder(folder)
        for candidate in self._candidates(root)[:-1]:
            if candidate.is_dir():
                missing = self._missing(candidate)[0]
                raise UserError(f"{candidate} has no {missing}: {self._advice(root)}")
        raise UserError(f"{self.name} is not in {root}: {self._advice(root)}")

    def load(self, folder: str | Path | None = None, classes: int = 0) -> FileDataset:
        """List its images and labels, and compare their numbers with the published ones.

        With `classes`, a subset or other images in the same layout are accepted: they have that
        number of classes, and any number of images.
        """
        home = self.find(folder)
        try:
            train, test, names = self.reader(home)
        except (OSError, UnicodeDecodeError) as error:
            path = getattr(error, "filename", None) or home
            advice = self._advice(home.parent)
            raise UserError(f"{path} cannot be read: {error}; {advice}") from None
        self._check_classes(home, (train, test), names, classes)
        if not classes:
            self._check_counts(home, train, test)
        return FileDataset(self.name, image_files(home, train), image_files(home, test), names)

    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        home = self.home(folder)
        return ("yes", f"the files in {home}") if home else ("no", self.origin)

    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        """Only checks that it is there: it is too large to download, or needs an account."""
        return f"{self.name} is here: the files in {self.find(folder)}"

    def _candidates(self, root: Path) -> list[Path]:
        return [root / name for name in (self.name, self.other_name) if name] + [root]

    def _missing(self, home: Path) -> list[str]:
        return [part for part in self.parts if not (home / part).exists()]

    def _advice(self, root: Path) -> str:
        home = root / self.name
        return f"get it from {self.origin}, and unpack it so that {home} holds {self.layout}"

    def _check_classes(
        self,
        home: Path,
        splits: tuple[LabelledNames, LabelledNames],
        names: tuple[str, ...],
        classes: int,
    ) -> None:
        if len(names) != (classes or self.classes):
            expected = f"{classes} were asked for" if classes else f"{self.name} has {self.classes}"
            raise UserError(
                f"{home} has {len(names)} classes, and {expected}: "
                f"--set classes={len(names)} trains on these"
            )
        for word, split in zip(("training", "test"), splits, strict=True):
            present = {label for _, label in split}
            for label, name in enumerate(names):
                if label not in present:
                    raise UserError(f"{home} has no {word} images of the class {name}")

    def _check_counts(self, home: Path, train: LabelledNames, test: LabelledNames) -> None:
        for word, split, count in (("training", train, self.train), ("test", test, self.test)):
            if len(split) != count:
                raise UserError(
                    f"{home} has {len(split)} {word} images, and {self.name} has {count}: unpack "
                    f"it again, or train on what is there with --set classes={self.classes}"
                )


def image_files(home: Path, split: LabelledNames) -> ImageFiles:
    names = np.array([os.fsencode(name) for name, _ in split])
    return ImageFiles(home, names, np.array([label for _, label in split], dtype=np.int64))


# --- for readers --------------------------------------------------------------------------------


def numbered_lines(path: Path) -> Iterable[tuple[int, list[str]]]:
    """The words of every line that is not empty, counted from 1; # starts a comment."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.split()


def class_names(by_number: dict[int, str], source: Path) -> tuple[str, ...]:
    """The names of the classes 1, 2, ...; a UserError if a number is missing."""
    for number in range(1, len(by_number) + 1):
        if number not in by_number:
            raise UserError(
                f"{source} has classes up to {max(by_number)}, but no image of class {number}"
            )
    return tuple(by_number[number] for number in sorted(by_number))


def check_present(home: Path, split: LabelledNames, source: Path) -> None:
    """Check that every file in a list exists; lists each folder once, which is fast."""
    contents: dict[str, set[str]] = {}
    for name, _ in split:
        folder, _, file = name.rpartition("/")
        if folder not in contents:
            path = home / folder
            contents[folder] = set(os.listdir(path)) if path.is_dir() else set()
        if file not in contents[folder]:
            raise UserError(f"{home / name} does not exist, but {source} lists it")

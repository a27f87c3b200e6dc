"""Datasets of photographs in their official layouts; the files are decoded while training.

The lab does not download them: it says where they come from and how their folder has to look. Ours
rather than torchvision's: its readers give images of their own splits, and no list of files by name
that processes can share, and they do not name the file that is missing.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.class_folders import (
    ImageFiles,
    LabelledNames,
    class_names,
    image_files,
    labelled,
)
from sgdf_lab.data.dataset import DatasetSpec, data_folder
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.files import open_regular, read_text

if TYPE_CHECKING:
    from rich.console import Console

Listing = tuple[LabelledNames, LabelledNames, tuple[str, ...]]  # training, test, names of classes


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


# --- for readers --------------------------------------------------------------------------------


def numbered_lines(path: Path) -> Iterable[tuple[int, list[str]]]:
    """The words of every line that is not empty, counted from 1; # starts a comment."""
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.split()


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


# --- ImageNet (ILSVRC2012), and any images in its layout -----------------------------------------


def list_imagenet(home: Path) -> Listing:
    classes = class_names(home / "train")
    train, val = (labelled(home, Path(part), classes) for part in ("train", "val"))
    return train, val, classes


IMAGENET = ImageFolderDataset(
    name="imagenet",
    train=1_281_167,
    test=50_000,
    classes=1000,
    parts=("train", "val"),
    layout="train/<class>/*.JPEG and val/<class>/*.JPEG",
    origin="https://image-net.org (ILSVRC2012, with an account)",
    reader=list_imagenet,
)


# --- Oxford-IIIT Pets: 37 breeds of cats and dogs ------------------------------------------------


def list_pets(home: Path) -> Listing:
    breeds: dict[int, str] = {}
    train, test = (
        _read_pets(home, home / "annotations" / f"{part}.txt", breeds)
        for part in ("trainval", "test")
    )
    return train, test, tuple(breeds[number] for number in sorted(breeds))


def _read_pets(home: Path, path: Path, breeds: dict[int, str]) -> LabelledNames:
    """One line per image: its name, which starts with the breed, and the number of its class.

    Adds the names of the classes to `breeds`.
    """
    split = []
    for line, words in numbered_lines(path):
        if len(words) < 2 or not words[1].isdigit() or words[1] == "0":
            raise UserError(f"{path} has no image and class in line {line}")
        name, number = words[0], int(words[1])
        breed = name.rpartition("_")[0]
        if breeds.setdefault(number, breed) != breed:
            raise UserError(
                f"{path} gives {name} the class {number} in line {line}, which is {breeds[number]}"
            )
        split.append((f"images/{name}.jpg", number - 1))
    check_present(home, split, path)
    return split


PETS = ImageFolderDataset(
    name="pets",
    train=3680,
    test=3669,
    classes=37,
    parts=("images", "annotations/trainval.txt", "annotations/test.txt"),
    layout="images/*.jpg, annotations/trainval.txt and annotations/test.txt",
    origin="https://www.robots.ox.ac.uk/~vgg/data/pets (images and annotations.tar.gz)",
    reader=list_pets,
    other_name="oxford-iiit-pet",
)


# --- Oxford Flowers-102; its training and validation images are trained on together --------------


def list_flowers(home: Path) -> Listing:
    """Two MATLAB files: labels from 1, and the numbers of the images of each split."""
    labels = _read_matlab(home / "imagelabels.mat", "labels")
    set_file = home / "setid.mat"
    splits = []
    for keys in (("trnid", "valid"), ("tstid",)):
        numbers = np.concatenate([_read_matlab(set_file, key) for key in keys])
        if len(numbers) and not 1 <= numbers.min() <= numbers.max() <= len(labels):
            raise UserError(
                f"{set_file} has images from {numbers.min()} to {numbers.max()}, and "
                f"imagelabels.mat has labels for {len(labels)}"
            )
        split = [(f"jpg/image_{n:05d}.jpg", int(labels[n - 1]) - 1) for n in numbers]
        check_present(home, split, set_file)
        splits.append(split)
    return splits[0], splits[1], tuple(str(label) for label in np.unique(labels))


def _read_matlab(path: Path, key: str) -> NDArray[np.int64]:
    from scipy.io import loadmat

    try:
        with open_regular(path) as file:
            return np.asarray(loadmat(file)[key]).ravel().astype(np.int64)
    except KeyError:
        raise UserError(f"{path} has no {key}") from None
    except Exception as error:  # scipy fails in many ways on other bytes
        raise UserError(f"{path} is not a MATLAB file: {error}") from None


FLOWERS102 = ImageFolderDataset(
    name="flowers102",
    train=2040,
    test=6149,
    classes=102,
    parts=("jpg", "imagelabels.mat", "setid.mat"),
    layout="jpg/image_*.jpg, imagelabels.mat and setid.mat",
    origin="https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
    reader=list_flowers,
    other_name="flowers-102",
)


# --- Food-101 ------------------------------------------------------------------------------------


def list_food(home: Path) -> Listing:
    """Lists of names such as apple_pie/134."""
    meta = home / "meta"
    lists = [
        [words[0] for _, words in numbered_lines(meta / f"{part}.txt")]
        for part in ("classes", "train", "test")
    ]
    labels = {name: label for label, name in enumerate(lists[0])}
    splits = []
    for names in lists[1:]:
        for name in names:
            if name.partition("/")[0] not in labels:
                raise UserError(f"{meta} lists {name}, whose class is not in classes.txt")
        split = [(f"images/{name}.jpg", labels[name.partition("/")[0]]) for name in names]
        check_present(home, split, meta)
        splits.append(split)
    return splits[0], splits[1], tuple(labels)


FOOD101 = ImageFolderDataset(
    name="food101",
    train=75_750,
    test=25_250,
    classes=101,
    parts=("images", *(f"meta/{part}.txt" for part in ("train", "test", "classes"))),
    layout="images/<class>/*.jpg and meta/train.txt, test.txt, classes.txt",
    origin="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 (food-101.tar.gz)",
    reader=list_food,
    other_name="food-101",
)

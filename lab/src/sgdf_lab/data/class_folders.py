"""Images as files with labels; and a user's own, one folder per class, with or without a split.

    photos/train/cat/*.jpg, photos/val/cat/*.jpg     val or test: what is evaluated
    photos/train, photos/val, photos/test            val for validation, test for evaluation
    photos/cat/*.jpg, photos/dog/*.jpg               a fifth of every class is held out as test

A class folder may have folders in it. Hidden files and folders are ignored.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.dataset import NamedFile, fingerprint
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.files import visible_files

# Those of torchvision's ImageFolder: an image with another ending would be left out silently.
ENDINGS = (".jpeg", ".jpg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
VALIDATION = ("val", "valid", "validation")
HELD_OUT = 5  # every fifth image is for the test, if there is no split

LabelledNames = list[tuple[str, int]]  # names of files, relative to the dataset's folder; labels


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


def image_files(home: Path, split: LabelledNames) -> ImageFiles:
    names = np.array([os.fsencode(name) for name, _ in split])
    return ImageFiles(home, names, np.array([label for _, label in split], dtype=np.int64))


@dataclass(frozen=True)
class ClassFolders:
    """What is in a folder: images to train on, and to evaluate on by name."""

    folder: Path
    train: ImageFiles
    evaluation: dict[str, ImageFiles]  # test, and validation if there is any
    classes: tuple[str, ...]
    note: str = ""  # about the split

    def named_files(self) -> list[NamedFile]:
        """All files, with part of the split, label and name, for a fingerprint."""
        splits = {"train": self.train, **self.evaluation}
        return [
            (f"{part} {files.labels[i]} {files.name(i)}", files.path(i))
            for part, files in splits.items()
            for i in range(len(files))
        ]


def read(folder: str | Path | None) -> ClassFolders:
    """List the images of a folder; a `UserError` says what is wrong with it."""
    if folder is None:
        raise UserError("which folder of images? Name it with --data-dir FOLDER")
    home = Path(folder).expanduser()
    try:
        return _read(home)
    except OSError as error:
        raise UserError(f"{error.filename or home} cannot be read: {error.strerror}") from None


def identify(options: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    """The user's own images: two folders never have runs of the same name."""
    return {"fingerprint": fingerprint(read(folder).named_files())}


def _read(home: Path) -> ClassFolders:
    if not home.is_dir():
        raise UserError(f"there is no folder {home}")
    parts = split_folders(home)
    if len(parts) > 1:
        classes = class_names(home / parts["train"])
        splits = {name: labelled(home, Path(part), classes) for name, part in parts.items()}
        train = splits.pop("train")
        files = {name: image_files(home, split) for name, split in splits.items()}
        return ClassFolders(home, image_files(home, train), files, classes)
    inside = Path(parts.get("train", "."))
    classes = class_names(home / inside)
    train, test = hold_out(home / inside, labelled(home, inside, classes), classes)
    note = (
        f"{home} has no split: {len(test)} of its {len(train) + len(test)} images, about a fifth of"
        " every class, drawn once and the same in every run, are the test images"
    )
    return ClassFolders(
        home, image_files(home, train), {"test": image_files(home, test)}, classes, note
    )


def split_folders(home: Path) -> dict[str, str]:
    """The folders of a split: train with test, validation or both, or only train.

    In small or capital letters. Beside other folders, one with the name train may be a class.
    """
    folders = subfolders(home)
    names = {name.lower(): name for name in folders}
    if "train" not in names:
        return {}
    parts_of = Counter("val" if n.lower() in VALIDATION else n.lower() for n in folders)
    for part in ("train", "val", "test"):
        if parts_of[part] > 1:
            raise UserError(f"{home} has {parts_of[part]} folders for {part}: keep one of them")
    train = {"train": names["train"]}
    validation = [names[name] for name in VALIDATION if name in names]
    if "test" in names:
        parts = {**train, "test": names["test"]}
        return {**parts, "validation": validation[0]} if validation else parts
    if validation:
        return {**train, "test": validation[0]}
    return train if len(names) == 1 else {}


def subfolders(folder: Path) -> tuple[str, ...]:
    entries = (entry for entry in os.scandir(folder) if entry.is_dir())
    return tuple(sorted(entry.name for entry in entries if not entry.name.startswith(".")))


def class_names(folder: Path) -> tuple[str, ...]:
    names = subfolders(folder)
    if not names:
        raise UserError(f"{folder} has no folders: its images have to be in one folder per class")
    if len(names) == 1:
        raise UserError(
            f"{folder} has images of one class only, {names[0]}: there is nothing to tell apart"
        )
    return names


def labelled(home: Path, part: Path, classes: tuple[str, ...]) -> LabelledNames:
    """The images of a part of the split, by name within the folder."""
    for name in subfolders(home / part):
        if name not in classes:
            raise UserError(f"{home / part / name} is a class without images to train on")
    split: LabelledNames = []
    owners: dict[str, Path] = {}  # a folder belongs to one class
    for label, name in enumerate(classes):
        if not (home / part / name).is_dir():
            raise UserError(f"{home / part} has no folder for the class {name}")
        images = sorted(images_in(home / part / name, owners))
        if not images:
            raise UserError(f"{home / part / name} has no images: files like .jpg, .png or .webp")
        split += [((part / name / image).as_posix(), label) for image in images]
    return split


def images_in(folder: Path, owners: dict[str, Path]) -> Iterable[str]:
    """The names of the images in a folder and in the folders in it."""
    for path in visible_files(folder, owners):
        if path.name.lower().endswith(ENDINGS):
            yield os.path.relpath(path, folder)


def hold_out(
    folder: Path, images: LabelledNames, classes: tuple[str, ...]
) -> tuple[LabelledNames, LabelledNames]:
    """Training and test images: a fifth of every class, but at least one, is for the test."""
    train: LabelledNames = []
    test: LabelledNames = []
    random = np.random.default_rng(0)
    for label, group in groupby(images, key=lambda image: image[1]):
        own = list(group)
        if len(own) < 2:
            raise UserError(
                f"{folder / classes[label]} has a single image: a class needs two, to train and to "
                "test"
            )
        held = set(random.permutation(len(own))[: max(1, round(len(own) / HELD_OUT))].tolist())
        for i, image in enumerate(own):
            (test if i in held else train).append(image)
    return train, test

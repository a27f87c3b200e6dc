"""ImageNet (ILSVRC2012), and any images in its layout: a folder per class, in train and in val."""

import os
from pathlib import Path

from sgdf_lab.data.image_folders import ImageFolderDataset, LabelledNames, Listing
from sgdf_lab.support.errors import UserError

# Those of torchvision's ImageFolder: an image with another ending would be left out silently.
ENDINGS = (".jpeg", ".jpg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def list_images(home: Path) -> Listing:
    classes = _subfolders(home / "train")
    for name in _subfolders(home / "val"):
        if name not in classes:
            raise UserError(f"{home / 'val' / name} is a class that {home / 'train'} does not have")
    train, test = (_labelled(home, part, classes) for part in ("train", "val"))
    return train, test, classes


def _subfolders(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))
    if not names:
        raise UserError(f"{folder} has no folders: its images have to be in one folder per class")
    return names


def _labelled(home: Path, part: str, classes: tuple[str, ...]) -> LabelledNames:
    split: LabelledNames = []
    for label, name in enumerate(classes):
        folder = home / part / name
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist, but {home / 'train' / name} does")
        images = sorted(e.name for e in os.scandir(folder) if e.name.lower().endswith(ENDINGS))
        if not images:
            raise UserError(f"{folder} has no images")
        split += [(f"{part}/{name}/{image}", label) for image in images]
    return split


DATASET = ImageFolderDataset(
    name="imagenet",
    order=5,
    train=1_281_167,
    test=50_000,
    classes=1000,
    parts=("train", "val"),
    layout="train/<class>/*.JPEG and val/<class>/*.JPEG",
    origin="https://image-net.org (ILSVRC2012, with an account)",
    reader=list_images,
)

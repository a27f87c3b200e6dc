"""Datasets whose images are files, in their official layouts; they are decoded while training.

The lab does not download them: it says where they come from and how their folder has to look.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sgdf.lab.data import places
from sgdf.support.errors import UserError, unknown

Pairs = list[tuple[str, int]]  # the names of files, within the dataset's folder, and labels
# As torchvision's ImageFolder has them: an image of another kind would be left out in silence.
ENDINGS = (".jpeg", ".jpg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Files:
    """Images by name, and their labels.

    The names are one array: a list of a million would be copied bit by bit into every process
    that only reads it.
    """

    folder: Path
    names: NDArray[np.bytes_]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        return self.folder / os.fsdecode(bytes(self.names[index]))

    def only(self, index: NDArray[np.int64]) -> "Files":
        return Files(self.folder, self.names[index], self.labels[index])


@dataclass(frozen=True)
class FileDataset:
    """A dataset on the disk; `classes` are the names of the labels 0, 1, ..."""

    name: str
    train: Files
    test: Files
    classes: tuple[str, ...]


Read = tuple[Pairs, Pairs, tuple[str, ...]]  # training, test, classes


@dataclass(frozen=True)
class Layout:
    """What is known of a dataset: how many images and classes, how it looks, whence it comes."""

    name: str
    train: int
    test: int
    classes: int
    parts: tuple[str, ...]  # files and folders that have to be there
    looks: str
    origin: str
    reader: Callable[[Path], Read]
    also: str = ""  # another usual name of its folder

    def advice(self, folder: Path) -> str:
        return f"get it from {self.origin}, and unpack it so that {folder / self.name} {self.looks}"


# --- finding and reading ------------------------------------------------------------------------


def layout(name: str) -> Layout:
    if name not in LAYOUTS:
        raise unknown("dataset", name, LAYOUTS)
    return LAYOUTS[name]


def home(name: str, folder: str | Path | None = None) -> Path | None:
    """Where a dataset lies: in a folder of its name, or directly; None if it is not here."""
    known, root = layout(name), places.data_folder(folder)
    for place in candidates(known, root):
        if all((place / part).exists() for part in known.parts):
            return place
    return None


def candidates(known: Layout, root: Path) -> list[Path]:
    return [root / known.name, *([root / known.also] if known.also else []), root]


def find(name: str, folder: str | Path | None = None) -> Path:
    """As `home`; one sentence if it is not here, or not whole."""
    if place := home(name, folder):
        return place
    known, root = layout(name), places.data_folder(folder)
    for place in candidates(known, root)[:-1]:
        if place.is_dir():
            missing = next(part for part in known.parts if not (place / part).exists())
            raise UserError(f"{place} has no {missing}: {known.advice(root)}")
    raise UserError(f"{name} is not in {root}: {known.advice(root)}")


def load(name: str, folder: str | Path | None = None, classes: int = 0) -> FileDataset:
    """The names and labels of a dataset, compared with what is known of it.

    A part of it, or other images in its layout, have another number of `classes`, which has to be
    said; the number of images is then free.
    """
    known, place = layout(name), find(name, folder)
    try:
        train, test, names = known.reader(place)
    except (OSError, UnicodeDecodeError) as error:
        where = getattr(error, "filename", None) or place
        raise UserError(f"{where} cannot be read: {error}; {known.advice(place.parent)}") from None
    check_classes(known, place, (train, test), names, classes)
    counts = (("training", train, known.train), ("test", test, known.test))
    for word, pairs, count in counts if not classes else ():
        if len(pairs) != count:
            raise UserError(
                f"{place} has {len(pairs)} {word} images, and {name} has {count}: unpack it "
                f"again, or take it as it is with --set classes={known.classes}"
            )
    return FileDataset(name, files(place, train), files(place, test), names)


def check_classes(
    known: Layout, place: Path, parts: tuple[Pairs, Pairs], names: tuple[str, ...], wanted: int
) -> None:
    if len(names) != (wanted or known.classes):
        raise UserError(
            f"{place} has {len(names)} classes, and {known.name} {'here' if wanted else 'has'} "
            f"{wanted or known.classes}: --set classes={len(names)} trains on these"
        )
    there = [{label for _, label in pairs} for pairs in parts]
    for label, name in enumerate(names):
        for word, labels in zip(("training", "test"), there, strict=True):
            if label not in labels:
                raise UserError(f"{place} has no {word} images of the class {name}")


def files(place: Path, pairs: Pairs) -> Files:
    names = np.array([os.fsencode(name) for name, _ in pairs])
    return Files(place, names, np.array([label for _, label in pairs], dtype=np.int64))


# --- the layouts --------------------------------------------------------------------------------


def imagenet(place: Path) -> Read:
    """A folder a class, in train and in val."""
    classes = subfolders(place / "train")
    for other in subfolders(place / "val"):
        if other not in classes:
            raise UserError(f"{place / 'val' / other} is a class that {place / 'train'} has not")
    train, test = (in_class_folders(place, part, classes) for part in ("train", "val"))
    return train, test, classes


def subfolders(folder: Path) -> tuple[str, ...]:
    found = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))
    if not found:
        raise UserError(f"{folder} has no folders: its images have to be in a folder a class")
    return found


def in_class_folders(place: Path, part: str, classes: tuple[str, ...]) -> Pairs:
    pairs: Pairs = []
    for label, name in enumerate(classes):
        folder = place / part / name
        if not folder.is_dir():
            raise UserError(f"{folder} is not there, but {place / 'train' / name} is")
        pictures = sorted(e.name for e in os.scandir(folder) if e.name.lower().endswith(ENDINGS))
        if not pictures:
            raise UserError(f"{folder} has no images")
        pairs += [(f"{part}/{name}/{picture}", label) for picture in pictures]
    return pairs


def pets(place: Path) -> Read:
    """A line an image: its name, which begins with the breed, and the number of the class."""
    breeds: dict[int, str] = {}
    parts = []
    for part in ("trainval", "test"):
        path, pairs = place / "annotations" / f"{part}.txt", []
        for number, words in numbered_lines(path):
            if len(words) < 2 or not words[1].isdigit() or words[1] == "0":
                raise UserError(f"{path} has no image and class in line {number}")
            name, label = words[0], int(words[1])
            breed = name.rpartition("_")[0]
            if breeds.setdefault(label, breed) != breed:
                raise UserError(
                    f"{path} gives {name} the class {label} in line {number}, which is "
                    f"{breeds[label]}"
                )
            pairs.append((f"images/{name}.jpg", label - 1))
        present(place, pairs, path)
        parts.append(pairs)
    return parts[0], parts[1], named(breeds, place / "annotations")


def named(found: dict[int, str], where: Path) -> tuple[str, ...]:
    """The names of the classes 1, 2, ... without a gap."""
    for label in range(1, len(found) + 1):
        if label not in found:
            raise UserError(
                f"{where} has classes up to {max(found)}, but no image of class {label}"
            )
    return tuple(found[label] for label in sorted(found))


def flowers102(place: Path) -> Read:
    """Two files of MATLAB: labels from 1 on, and the numbers of the images of every split.

    Training and validation images are trained on together.
    """
    labels = matlab(place / "imagelabels.mat", "labels")
    splits = place / "setid.mat"
    parts = []
    for keys in (("trnid", "valid"), ("tstid",)):
        numbers = np.concatenate([matlab(splits, key) for key in keys])
        if len(numbers) and not 1 <= numbers.min() <= numbers.max() <= len(labels):
            raise UserError(
                f"{splits} has images from {numbers.min()} to {numbers.max()}, and "
                f"imagelabels.mat has labels for {len(labels)}"
            )
        pairs = [(f"jpg/image_{n:05d}.jpg", int(labels[n - 1]) - 1) for n in numbers]
        present(place, pairs, splits)
        parts.append(pairs)
    found = {int(label): str(label) for label in labels}
    return parts[0], parts[1], named(found, place / "imagelabels.mat")


def matlab(path: Path, key: str) -> NDArray[np.int64]:
    from scipy.io import loadmat

    try:
        return np.asarray(loadmat(path)[key]).ravel().astype(np.int64)
    except KeyError:
        raise UserError(f"{path} has no {key}") from None
    except Exception as error:  # whatever scipy may say of bytes that are none of MATLAB's
        raise UserError(f"{path} is not a file of MATLAB: {error}") from None


def food101(place: Path) -> Read:
    """Lists of names like apple_pie/134, as text or as JSON."""
    meta = place / "meta"
    lists = [food_list(meta, part) for part in ("train", "test")]
    if (meta / "classes.txt").exists():
        classes = tuple(words[0] for _, words in numbered_lines(meta / "classes.txt"))
    else:
        classes = tuple(sorted({name.partition("/")[0] for names in lists for name in names}))
    labels = {name: label for label, name in enumerate(classes)}
    parts = []
    for part, names in zip(("train", "test"), lists, strict=True):
        for name in names:
            if name.partition("/")[0] not in labels:
                raise UserError(f"{meta} has {name} in {part}, whose class is not in classes.txt")
        pairs = [(f"images/{name}.jpg", labels[name.partition("/")[0]]) for name in names]
        present(place, pairs, meta)
        parts.append(pairs)
    return parts[0], parts[1], classes


def food_list(meta: Path, part: str) -> list[str]:
    if (text := meta / f"{part}.txt").exists():
        return [words[0] for _, words in numbered_lines(text)]
    path = meta / f"{part}.json"
    if not path.exists():
        raise UserError(f"{meta} has neither {part}.txt nor {part}.json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [str(name) for names in found.values() for name in names]
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not the list of names that it should be: {error}") from None


def numbered_lines(path: Path) -> Iterable[tuple[int, list[str]]]:
    """The words of every line that has any, counted from 1; # begins a comment."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.split()


def present(place: Path, pairs: Pairs, source: Path) -> None:
    """Every file that a list names has to be there; asked folder by folder, which is fast."""
    there: dict[str, set[str]] = {}
    for name, _ in pairs:
        folder, _, file = name.rpartition("/")
        if folder not in there:
            whole = place / folder
            there[folder] = set(os.listdir(whole)) if whole.is_dir() else set()
        if file not in there[folder]:
            raise UserError(f"{place / name} is not there, but {source} names it")


LAYOUTS = {
    known.name: known
    for known in (
        Layout(
            *("imagenet", 1_281_167, 50_000, 1000),
            parts=("train", "val"),
            looks="holds train/<class>/*.JPEG and val/<class>/*.JPEG",
            origin="https://image-net.org (ILSVRC2012, with an account)",
            reader=imagenet,
        ),
        Layout(
            *("pets", 3680, 3669, 37),
            parts=("images", "annotations/trainval.txt", "annotations/test.txt"),
            looks="holds images/*.jpg, annotations/trainval.txt and annotations/test.txt",
            origin="https://www.robots.ox.ac.uk/~vgg/data/pets (images and annotations.tar.gz)",
            reader=pets,
            also="oxford-iiit-pet",
        ),
        Layout(
            *("flowers102", 2040, 6149, 102),
            parts=("jpg", "imagelabels.mat", "setid.mat"),
            looks="holds jpg/image_*.jpg, imagelabels.mat and setid.mat",
            origin="https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
            reader=flowers102,
            also="flowers-102",
        ),
        Layout(
            *("food101", 75_750, 25_250, 101),
            parts=("images", "meta"),
            looks="holds images/<class>/*.jpg and meta/train.txt, test.txt, classes.txt",
            origin="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 (food-101.tar.gz)",
            reader=food101,
            also="food-101",
        ),
    )
}

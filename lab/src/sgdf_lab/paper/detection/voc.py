"""PASCAL VOC 2007 and 2012 as officially unpacked, for detection.

    VOCdevkit/VOC2007/JPEGImages/000005.jpg
    VOCdevkit/VOC2007/Annotations/000005.xml
    VOCdevkit/VOC2007/ImageSets/Main/trainval.txt, test.txt
    VOCdevkit/VOC2012/...                          (its test.txt was never published)

Train on trainval of both years; evaluate on the 2007 test set. Other images in this layout have
class names of their own, and may do without VOC2012. All annotations are read and checked
when a run starts; of the images only the headers, until they are needed. A stand-in has rectangles
in the colour of their class.
"""

import colorsys
import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.data.dataset import DatasetSpec, NamedFile, data_folder, fingerprint
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.files import TEXT_LIMIT, open_regular, read_text

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
ImageList = tuple[str, str]  # a year and one of its lists
TRAINING = (("VOC2007", "trainval"), ("VOC2012", "trainval"))
TEST = (("VOC2007", "test"),)
OFFICIAL = {  # images in a list
    ("VOC2007", "trainval"): 5011,
    ("VOC2012", "trainval"): 11540,
    ("VOC2007", "test"): 4952,
}
ARCHIVES = (
    "VOCtrainval_06-Nov-2007.tar, VOCtest_06-Nov-2007.tar and VOCtrainval_11-May-2012.tar of "
    "host.robots.ox.ac.uk/pascal/VOC"
)


@dataclass(frozen=True)
class Example:
    """An image and the objects in it.

    A box is left, top, right, bottom in pixels from 0, with the right and bottom edges after the
    last pixel: the first pixel of an image is 0, 0, 1, 1.
    """

    path: Path
    size: tuple[int, int]  # width, height
    boxes: Tensor  # n x 4, float32
    labels: Tensor  # n, int64, from 1
    difficult: Tensor  # n, bool

    def pixels(self) -> Tensor:
        """3 x height x width, uint8."""
        with opened(self.path) as image:
            values = np.array(image.convert("RGB"))
        return torch.from_numpy(values).permute(2, 0, 1)


@dataclass(frozen=True)
class Voc:
    """Training images, all with at least one object that is not difficult, and test images."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]
    left_out: int = 0  # training images without one
    classes: tuple[str, ...] = CLASSES  # the names of the labels 1, 2, ...; 0 is the background


# --- where it is ----------------------------------------------------------------------------------


def find(folder: str | Path | None, needed: Iterable[ImageList] = (*TRAINING, *TEST)) -> Path:
    """The VOCdevkit in the data folder, with all lists of images that are needed."""
    folder = data_folder(folder)
    for devkit in (folder / "voc" / "VOCdevkit", folder / "VOCdevkit"):
        if devkit.is_dir():
            for year, part in needed:
                path = list_file(devkit, year, part)
                if not path.is_file():
                    raise UserError(f"there is no {path}: unpack {ARCHIVES} in {devkit.parent}")
            return devkit
    home = folder / "voc"
    raise UserError(f"there is no {home / 'VOCdevkit'}: unpack {ARCHIVES} in {home}")


def list_file(devkit: Path, year: str, part: str) -> Path:
    return devkit / year / "ImageSets" / "Main" / f"{part}.txt"


# --- reading --------------------------------------------------------------------------------------


def load(
    folder: str | Path | None, *, official: bool = True, classes: tuple[str, ...] = CLASSES
) -> Voc:
    """All images in the lists, read and checked."""
    devkit, lists = lists_in(folder, official=official, own=classes != CLASSES)
    training = read_examples(devkit, {p: lists[p] for p in TRAINING if p in lists}, classes)
    kept = tuple(example for example in training if not example.difficult.all())
    if not kept:
        raise UserError(f"no training image in {devkit} has an object to train on")
    test = read_examples(devkit, {part: lists[part] for part in TEST}, classes)
    if not test:
        raise UserError(f"{list_file(devkit, *TEST[0])} has no images")
    return Voc(kept, test, len(training) - len(kept), classes)


def read_class_names(path: Path) -> tuple[str, ...]:
    """The names of classes in a file, one per line; # starts a comment."""
    try:
        lines = read_text(path.expanduser()).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UserError(f"the class names {path} cannot be read: {why}") from None
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise UserError(f"{path} has no class names: write one per line")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path} has the class {name} twice")
    return tuple(names)


def named_files(folder: str | Path | None) -> list[NamedFile]:
    """The images and annotations of a user's own, for a fingerprint."""
    devkit, lists = lists_in(folder, own=True)
    return [
        (f"{year} {part} {kind} {name}", devkit / year / kind / f"{name}.{ending}")
        for (year, part), names in lists.items()
        for name in names
        for kind, ending in (("JPEGImages", "jpg"), ("Annotations", "xml"))
    ]


def identify(options: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """With class names of their own, the images are a user's: a run knows both."""
    names = options.get("names")
    if isinstance(names, str):
        names = list(read_class_names(Path(names)))
    if not isinstance(names, list):
        return {}
    return {"names": names, "fingerprint": fingerprint(named_files(folder))}


def lists_in(
    folder: str | Path | None, *, official: bool = True, own: bool = False
) -> tuple[Path, dict[ImageList, list[str]]]:
    """The VOCdevkit, and the names of the images in its lists.

    With `official`, each list must have its official length. Images of one's `own` may do without
    VOC2012.
    """
    needed = (TRAINING[0], *TEST) if own else (*TRAINING, *TEST)
    devkit = find(folder, needed)
    files = {part: list_file(devkit, *part) for part in (*TRAINING, *TEST)}
    lists = {p: names_in(file) for p, file in files.items() if p in needed or file.is_file()}
    for part, names in lists.items() if official and not own else ():
        if len(names) != OFFICIAL[part]:
            raise UserError(
                f"{files[part]} lists {len(names)} images, not the official {OFFICIAL[part]}: "
                "unpack it again, or use --set lists=any"
            )
    return devkit, lists


def names_in(path: Path) -> list[str]:
    try:
        names = read_text(path).split()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from None
    for name in names:
        if not re.fullmatch(r"\w+", name):
            raise UserError(f"{path} lists {name!r}, which is not the name of an image")
    return names


def read_examples(
    devkit: Path, lists: Mapping[ImageList, list[str]], classes: tuple[str, ...] = CLASSES
) -> tuple[Example, ...]:
    return tuple(
        read_example(devkit / year, name, classes)
        for (year, _), names in lists.items()
        for name in names
    )


def read_example(root: Path, name: str, classes: tuple[str, ...] = CLASSES) -> Example:
    """An annotation, checked against its image, of which only the header is read."""
    image = root / "JPEGImages" / f"{name}.jpg"
    annotation = root / "Annotations" / f"{name}.xml"
    for path in (image, annotation):
        if not path.is_file():
            raise UserError(f"there is no {path}, which a list in {root / 'ImageSets'} names")
    with opened(image) as header:
        size = header.size
    found = elements_of(annotation)
    objects = [read_object(element, annotation, size, classes) for element in found]
    return Example(
        image,
        size,
        torch.tensor([box for box, _, _ in objects], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([label for _, label, _ in objects], dtype=torch.int64),
        torch.tensor([difficult for _, _, difficult in objects], dtype=torch.bool),
    )


@contextlib.contextmanager
def opened(path: Path) -> Iterator["Image.Image"]:
    from PIL import Image

    try:
        with open_regular(path) as file, Image.open(file, formats=("JPEG",)) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise damaged(path, error) from None


class PlainBuilder(ElementTree.TreeBuilder):
    """Refuses a document type, which could declare entities.

    The standard library's parser expands entities, so a small file could become huge.
    """

    def doctype(self, *_: object) -> None:
        raise ValueError("it declares a document type")


def elements_of(path: Path) -> list[ElementTree.Element]:
    """The objects in an annotation."""
    try:
        parser = ElementTree.XMLParser(target=PlainBuilder())
        with open_regular(path, limit=TEXT_LIMIT) as file:
            root = ElementTree.fromstring(file.read(), parser=parser)
    except (ElementTree.ParseError, ValueError, LookupError, OSError) as error:
        raise damaged(path, error) from None
    if root.tag != "annotation":
        raise UserError(f"{path} is not an annotation of VOC: it begins with <{root.tag}>")
    return root.findall("object")


def read_object(
    element: ElementTree.Element, path: Path, size: tuple[int, int], classes: tuple[str, ...]
) -> tuple[list[float], int, bool]:
    """Box, label, and whether it is marked as difficult."""
    name = element.findtext("name", "").strip()
    if name not in classes:
        kind = "class of VOC" if classes == CLASSES else "class"
        raise UserError(f"{path}: {unknown(kind, name, classes)}")
    edges = [element.findtext(f"bndbox/{edge}", "") for edge in ("xmin", "ymin", "xmax", "ymax")]
    try:
        box = [float(edge) for edge in edges]
    except ValueError:
        raise UserError(f"{path}: the box of a {name} is not four numbers: {edges}") from None
    difficult = element.findtext("difficult", "0").strip() == "1"
    return inside(box, path, name, size), classes.index(name) + 1, difficult


def inside(box: list[float], path: Path, name: str, size: tuple[int, int]) -> list[float]:
    """Convert the first and last pixel, counted from 1, to edges within the image.

    One pixel outside is tolerated: some annotations count from 0 or have half pixels.
    """
    left, top, right, bottom = box[0] - 1, box[1] - 1, box[2], box[3]
    width, height = size
    fits = -1 <= left < right <= width + 1 and -1 <= top < bottom <= height + 1
    clipped = [max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)]
    is_empty = clipped[0] >= clipped[2] or clipped[1] >= clipped[3]
    if not fits or is_empty or not all(map(math.isfinite, box)):
        numbers = ", ".join(f"{edge:g}" for edge in box)
        raise UserError(
            f"{path}: the box of a {name}, {numbers}, is empty or not inside the image of "
            f"{width}x{height} pixels"
        )
    return clipped


def damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read: {error}: unpack it again")


# --- the stand-in ---------------------------------------------------------------------------------

DRAWN_TRAIN, DRAWN_TEST, SIDE = 64, 32, 64  # numbers of images; pixels
DRAWN_CLASSES = len(CLASSES)


@dataclass(frozen=True)
class DrawnExample(Example):
    """An image that is drawn when its pixels are needed."""

    def pixels(self) -> Tensor:
        width, height = self.size
        values = np.random.default_rng(int(self.path.name)).normal(127, 20, (3, height, width))
        image = torch.from_numpy(values.clip(0, 255).astype(np.uint8))
        for box, label in zip(self.boxes.int().tolist(), self.labels.tolist(), strict=True):
            left, top, right, bottom = box
            image[:, top:bottom, left:right] = torch.tensor(colour(label))[:, None, None]
        return image


def colour(label: int) -> list[int]:
    return [round(255 * part) for part in colorsys.hsv_to_rgb(label / DRAWN_CLASSES, 0.9, 0.9)]


def make_voc() -> Voc:
    examples = tuple(draw(number) for number in range(DRAWN_TRAIN + DRAWN_TEST))
    return Voc(examples[:DRAWN_TRAIN], examples[DRAWN_TRAIN:])


def draw(number: int) -> DrawnExample:
    """One or two rectangles, one in each half of an image."""
    random = np.random.default_rng(number)
    size = (int(random.integers(SIDE, 3 * SIDE // 2)), SIDE)
    count = int(random.integers(1, 3))
    boxes, labels = [], []
    for half in range(count):
        width = size[0] // count
        wide, high = random.integers(width // 2, width - 2), random.integers(SIDE // 3, SIDE - 2)
        left = half * width + random.integers(0, width - wide)
        top = random.integers(0, SIDE - high)
        boxes.append([left, top, left + wide, top + high])
        labels.append(int(random.integers(1, DRAWN_CLASSES + 1)))
    return DrawnExample(
        Path(str(number)),
        size,
        torch.tensor(np.array(boxes), dtype=torch.float32),
        torch.tensor(labels),
        torch.zeros(count, dtype=torch.bool),
    )


# --- the dataset ----------------------------------------------------------------------------------


class VocDataset(DatasetSpec):
    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        try:
            return "yes", str(find(folder))
        except UserError:
            home = data_folder(folder) / self.name
            return "no", f"unpack the archives of host.robots.ox.ac.uk/pascal/VOC in {home}"

    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        """Only checks that it is there: the lab does not download it."""
        return f"{self.name} is here: {find(folder)}"


DATASET = VocDataset(
    name="voc",
    train=sum(OFFICIAL[images] for images in TRAINING),
    test=sum(OFFICIAL[images] for images in TEST),
    classes=len(CLASSES),
)

"""The official layouts of the datasets whose images are files, with a few small images each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

BREEDS = ("Abyssinian", "american_bulldog", "Bengal")
DISHES = ("apple_pie", "baby_back_ribs", "waffles")
SYNSETS = ("n01440764", "n01443537", "n01484850")


def photograph(path: Path, label: int, seed: int) -> None:
    """A JPEG of random size, tinted by its class."""
    random = np.random.default_rng(seed)
    height, width = random.integers(40, 90, 2)
    pixels = random.integers(0, 160, (height, width, 3))
    pixels[..., label % 3] += 90
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, "JPEG", quality=90)


def imagenet(root: Path, train: int = 8, test: int = 4, classes: Sequence[str] = SYNSETS) -> Path:
    """`train` and `test` images per class, as in all of these."""
    for label, name in enumerate(classes):
        for i in range(train):
            photograph(root / "train" / name / f"{name}_{i}.JPEG", label, 100 * label + i)
        for i in range(test):
            photograph(root / "val" / name / f"ILSVRC2012_val_{i:08d}_{name}.JPEG", label, 50 + i)
    return root


def pets(root: Path, train: int = 8, test: int = 4) -> Path:
    lists: dict[str, list[str]] = {"trainval": [], "test": []}
    for label, breed in enumerate(BREEDS):
        for i in range(train + test):
            name = f"{breed}_{i + 1}"
            photograph(root / "images" / f"{name}.jpg", label, 100 * label + i)
            lists["trainval" if i < train else "test"].append(f"{name} {label + 1} 1 1")
    (root / "annotations").mkdir()
    for part, lines in lists.items():
        (root / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return root


def flowers102(root: Path, train: int = 8, test: int = 4, classes: int = 3) -> Path:
    labels, splits = [], {"trnid": [], "valid": [], "tstid": []}
    for label in range(classes):
        for i in range(train + test):
            labels.append(label + 1)
            number = len(labels)
            photograph(root / "jpg" / f"image_{number:05d}.jpg", label, number)
            splits["tstid" if i >= train else "valid" if i >= train // 2 else "trnid"].append(
                number
            )
    savemat(root / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})
    savemat(root / "setid.mat", {k: np.array([v], dtype=np.uint16) for k, v in splits.items()})
    return root


def food101(root: Path, train: int = 8, test: int = 4) -> Path:
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for label, dish in enumerate(DISHES):
        for i in range(train + test):
            photograph(root / "images" / dish / f"{1000 + i}.jpg", label, 100 * label + i)
            lists["train" if i < train else "test"].append(f"{dish}/{1000 + i}")
    (root / "meta").mkdir()
    for part, lines in lists.items():
        (root / "meta" / f"{part}.txt").write_text("\n".join(lines) + "\n")
    (root / "meta" / "classes.txt").write_text("\n".join(DISHES) + "\n")
    return root


MAKE = {"imagenet": imagenet, "pets": pets, "flowers102": flowers102, "food101": food101}

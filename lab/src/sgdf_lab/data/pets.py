"""Oxford-IIIT Pets: 37 breeds of cats and dogs."""

from pathlib import Path

from sgdf_lab.data.image_folders import (
    ImageFolderDataset,
    LabelledNames,
    Listing,
    check_present,
    class_names,
    numbered_lines,
)
from sgdf_lab.support.errors import UserError


def list_images(home: Path) -> Listing:
    breeds: dict[int, str] = {}
    train, test = (
        _read_list(home, home / "annotations" / f"{part}.txt", breeds)
        for part in ("trainval", "test")
    )
    return train, test, class_names(breeds, home / "annotations")


def _read_list(home: Path, path: Path, breeds: dict[int, str]) -> LabelledNames:
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


DATASET = ImageFolderDataset(
    name="pets",
    order=6,
    train=3680,
    test=3669,
    classes=37,
    parts=("images", "annotations/trainval.txt", "annotations/test.txt"),
    layout="images/*.jpg, annotations/trainval.txt and annotations/test.txt",
    origin="https://www.robots.ox.ac.uk/~vgg/data/pets (images and annotations.tar.gz)",
    reader=list_images,
    other_name="oxford-iiit-pet",
)

"""Food-101."""

import json
from pathlib import Path

from sgdf_lab.data.image_folders import (
    ImageFolderDataset,
    Listing,
    check_present,
    numbered_lines,
)
from sgdf_lab.support.errors import UserError


def list_images(home: Path) -> Listing:
    """Lists of names such as apple_pie/134, as text or as JSON."""
    meta = home / "meta"
    lists = [_read_list(meta, part) for part in ("train", "test")]
    if (meta / "classes.txt").exists():
        classes = tuple(words[0] for _, words in numbered_lines(meta / "classes.txt"))
    else:
        classes = tuple(sorted({name.partition("/")[0] for names in lists for name in names}))
    labels = {name: label for label, name in enumerate(classes)}
    splits = []
    for part, names in zip(("train", "test"), lists, strict=True):
        for name in names:
            if name.partition("/")[0] not in labels:
                raise UserError(f"{meta} has {name} in {part}, whose class is not in classes.txt")
        split = [(f"images/{name}.jpg", labels[name.partition("/")[0]]) for name in names]
        check_present(home, split, meta)
        splits.append(split)
    return splits[0], splits[1], classes


def _read_list(meta: Path, part: str) -> list[str]:
    if (text := meta / f"{part}.txt").exists():
        return [words[0] for _, words in numbered_lines(text)]
    path = meta / f"{part}.json"
    if not path.exists():
        raise UserError(f"{meta} has neither {part}.txt nor {part}.json")
    try:
        by_class = json.loads(path.read_text(encoding="utf-8"))
        return [str(name) for names in by_class.values() for name in names]
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not a list of names by class: {error}") from None


DATASET = ImageFolderDataset(
    name="food101",
    order=8,
    train=75_750,
    test=25_250,
    classes=101,
    parts=("images", "meta"),
    layout="images/<class>/*.jpg and meta/train.txt, test.txt, classes.txt",
    origin="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 (food-101.tar.gz)",
    reader=list_images,
    other_name="food-101",
)

"""Checks of what was downloaded and read: checksums, counts, shapes, labels."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sgdf_lab.data.splits import Split, Splits
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    from sgdf_lab.data.arrays import ArrayDataset


#: Largest difference of a channel's mean: those of the two splits differ by 0.002, those of two
#: channels by 0.02.
TOLERANCE = 0.005


class DamagedData(UserError):
    """A file that exists but does not hold what it should."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path


def file_checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def split_digest(split: Split) -> str:
    """The sha256 of the images, N x C x H x W, followed by the labels, one byte each."""
    checksum = hashlib.sha256(split.images.numpy().data)
    checksum.update(split.labels.to(torch.uint8).numpy().data)
    return checksum.hexdigest()


def check_splits(spec: "ArrayDataset", splits: Splits, path: Path) -> None:
    """Compare counts, shapes, labels and checksums with the published ones."""
    for index, (split, count) in enumerate(zip(splits, (spec.train, spec.test), strict=True)):
        why = _difference(spec, split, count)
        if not why and spec.digests and split_digest(split) != spec.digests[index]:
            why = "pixels or labels that differ from the published ones (their checksum differs)"
        if why:
            raise DamagedData(path, f"holds {why}, in its {('training', 'test')[index]} split")


def _difference(spec: "ArrayDataset", split: Split, count: int) -> str:
    if tuple(split.images.shape) != (count, *spec.shape) or len(split.labels) != count:
        shape = " x ".join(map(str, split.images.shape))
        expected = " x ".join(map(str, (count, *spec.shape)))
        return f"{shape} pixels and {len(split.labels)} labels, not {expected} and {count}"
    if split.labels.min() < 0 or split.labels.max() >= spec.classes:
        return f"labels outside 0 to {spec.classes - 1}"
    counts = split.labels.bincount(minlength=spec.classes)
    if spec.balanced and not (counts == count // spec.classes).all():
        return f"{counts.min()} to {counts.max()} images per class, not {count // spec.classes}"
    if spec.channel_means:
        means = channel_means(split)
        if any(abs(a - b) > TOLERANCE for a, b in zip(means, spec.channel_means, strict=True)):
            found, expected = (
                ", ".join(f"{mean:.4f}" for mean in values)
                for values in (means, spec.channel_means)
            )
            return (
                f"other pixels than the published ones: channels with means {found}, not {expected}"
            )
    return ""


def channel_means(split: Split) -> list[float]:
    """The mean of every channel, of pixels between 0 and 1."""
    total = sum(part.sum((0, 2, 3), dtype=torch.int64) for part in split.images.split(10_000))
    pixels = split.images[:, 0].numel()
    return [value / 255 / pixels for value in torch.as_tensor(total).tolist()]

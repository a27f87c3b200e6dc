"""Datasets of small images: found in any of their usual layouts, read into memory and checked.

Ours rather than torchvision's readers: those know one layout each, and download where it is
missing. Here a dataset may lie in any published or mirrored form, and its pixels are compared with
the published ones.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from sgdf_lab.data.archive import DamagedData, plain_or_gzipped
from sgdf_lab.data.dataset import (
    Dataset,
    DatasetSpec,
    Split,
    Splits,
    as_split,
    data_folder,
    fetch_command,
)
from sgdf_lab.data.fetch import Fallback, Remote, fetch_files, resumable
from sgdf_lab.data.synthetic import make_splits
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.files import replacing

if TYPE_CHECKING:
    from rich.console import Console


# --- layouts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """One form in which a dataset is published: `path` is looked for in the data folder.

    Args:
        path: a folder, an archive, or with `files` the folder that holds them.
        phrase: what comes before the path in a sentence, such as "the archive".
        reader: reads the training and the test split from the path.
        files: the names of files, plain or gzipped, in a folder that may hold other things.
            All of them have to be there.
        is_cache: was decoded from another form; if damaged, that form is read instead.
        cache: the name of the file beside it that keeps the result of a slow reader.
    """

    path: str
    phrase: str
    reader: Callable[[Path], Splits]
    files: tuple[str, ...] = ()
    is_cache: bool = False
    cache: str = ""

    def is_in(self, base: Path) -> bool:
        if self.files:
            return all(plain_or_gzipped(base / self.path / name) for name in self.files)
        return (base / self.path).exists()


@dataclass(frozen=True)
class Source:
    """A layout of a dataset that is on the disk."""

    layout: Layout
    base: Path

    @property
    def path(self) -> Path:
        return self.base / self.layout.path

    def __str__(self) -> str:
        return f"{self.layout.phrase} {self.path}"

    def read(self) -> Splits:
        return self.layout.reader(self.path)

    def keep(self, splits: Splits) -> None:
        """Cache what took long to decode."""
        if self.layout.cache:
            keep_decoded(splits, self.base / self.layout.cache)

    def how_to_fix(self, damage: DamagedData) -> str:
        """What to delete before fetching again; never a folder that may hold other things."""
        if not self.layout.files:
            return f"delete {self.path}"
        return "delete it" if damage.path.is_file() else "delete those files"


def read_decoded(path: Path) -> Splits:
    """What `keep_decoded` wrote."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = (
                as_split(arrays[f"{part}_images"], arrays[f"{part}_labels"])
                for part in ("train", "test")
            )
    except Exception as error:  # a damaged zip file fails in many ways
        raise DamagedData(path, f"is damaged ({error})") from error
    return train, test


def keep_decoded(splits: Splits, path: Path) -> None:
    """Write the cache, atomically; without it, if the folder is read-only or the disk is full."""
    arrays = {}
    for part, split in zip(("train", "test"), splits, strict=True):
        arrays[f"{part}_images"] = split.images.numpy()
        arrays[f"{part}_labels"] = split.labels.to(torch.uint8).numpy()
    with contextlib.suppress(OSError), replacing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


# --- the dataset ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ArrayDataset(DatasetSpec):
    """A dataset of small images of one size.

    Args:
        shape: of an image, C x H x W.
        mean, std: of pixels between 0 and 1, by which a model's input is normalised.
        layouts: in which it may be on the disk, the best first: plain files before archives, a
            cache before what it was decoded from.
        folders: where to look beside the data folder.
        remotes: the official files to download.
        fallback: fetches it where the official server cannot be reached.
        balanced: whether every class has the same number of images.
        digests: `split_digest` of the training and of the test split.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layouts: tuple[Layout, ...] = ()
    folders: tuple[Path, ...] = ()
    remotes: tuple[Remote, ...] = ()
    fallback: Fallback | None = None
    balanced: bool = True
    digests: tuple[str, str] | None = None

    def load(self, folder: str | Path | None = None, *, synthetic: bool = False) -> Dataset:
        """Read the dataset and check it, or make its synthetic stand-in."""
        if synthetic:
            splits, source = make_splits(self.name, self.classes, self.shape), "synthetic"
        else:
            splits, source = self._read(data_folder(folder))
        return Dataset(self.name, *splits, self.classes, self.mean, self.std, source)

    def sources(self, folder: Path) -> Iterator[Source]:
        """Every form of the dataset that is on the disk, the best first."""
        for base in (folder / self.name, folder, *self.folders):
            for layout in self.layouts:
                if layout.is_in(base):
                    yield Source(layout, base)

    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        folder = data_folder(folder)
        for source in self.sources(folder):
            return "yes", str(source)
        if not self.remotes:
            return "no", self._advice(folder)
        return "half" if self._half_fetched(folder) else "no", fetch_command(self.name, folder)

    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        from rich.console import Console

        folder = data_folder(folder)
        archives = [remote.file for remote in self.remotes]
        with resumable(fetch_command(self.name, folder), folder):
            if all(source.layout.path in archives for source in self.sources(folder)):
                if not self.remotes:
                    raise UserError(f"{self.name} cannot be downloaded: {self._advice(folder)}")
                fetch_files(self.remotes, folder / self.name, self.fallback, console or Console())
            dataset = self.load(folder)
        train, test = len(dataset.train.labels), len(dataset.test.labels)
        return f"{self.name}: {train} training and {test} test images, checked: {dataset.source}"

    def _read(self, folder: Path) -> tuple[Splits, str]:
        """Read the best form that is not a damaged cache."""
        advice, damage = self._advice(folder), None
        for source in self.sources(folder):
            try:
                splits = source.read()
                check_splits(self, splits, source.path)
            except DamagedData as error:
                damage = UserError(f"{error}: {source.how_to_fix(error)} and {advice}")
                if not source.layout.is_cache:
                    raise damage from None
            else:
                source.keep(splits)
                return splits, str(source)
        if damage:
            raise damage
        if self._half_fetched(folder):
            raise UserError(f"{self.name} in {folder} is half downloaded: {advice} to resume")
        raise UserError(f"{self.name} is not in {folder}: {advice}")

    def _advice(self, folder: Path) -> str:
        if self.remotes:
            return f"run `{fetch_command(self.name, folder)}`"
        return (
            f"put {' or '.join(layout.path for layout in self.layouts)} into {folder / self.name}"
        )

    def _half_fetched(self, folder: Path) -> bool:
        """Whether a fetch was interrupted: a .part file, or some of the official files."""
        home = folder / self.name
        some = any(
            plain_or_gzipped(home / remote.file.removesuffix(".gz"))
            for remote in self.remotes
            if not remote.root
        )
        return some or any(home.glob("*.part"))


# --- checks ---------------------------------------------------------------------------------------


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
    return ""

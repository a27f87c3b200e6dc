"""Tiny datasets, written as the real ones are published."""

import gzip
import importlib
import json
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sgdf_lab import data
from sgdf_lab.data import Split, cifar, fashion_mnist
from sgdf_lab.data.fashion_mnist import IDX_FILES
from sgdf_lab.data.fetch import file_checksum

TINY = {
    "cifar10": replace(cifar.CIFAR10, train=50, test=10, digests=None),
    "cifar100": replace(cifar.CIFAR100, train=200, test=100),
    "fashion-mnist": replace(fashion_mnist.DATASET, train=60, test=10),
}


def put(monkeypatch, name: str, spec: data.DatasetSpec) -> None:
    """Let a dataset of the registry be another one."""
    module, _, attribute = data.DATASETS[name].partition(":")
    monkeypatch.setattr(importlib.import_module(module), attribute, spec)


def made_up(name: str) -> tuple[Split, Split]:
    """Random images with balanced labels in random order."""
    spec = TINY[name]
    random = np.random.default_rng(len(name))

    def split(count: int) -> Split:
        labels = random.permutation(np.arange(count) % spec.classes)
        images = random.integers(256, size=(count, *spec.shape), dtype=np.uint8)
        return Split(torch.from_numpy(images), torch.from_numpy(labels))

    return split(spec.train), split(spec.test)


def rows(split: Split) -> tuple[np.ndarray, np.ndarray]:
    return split.images.flatten(1).numpy(), split.labels.numpy()


def write_batch(path: Path, batch: dict[str, object]) -> None:
    """Pickle a batch, which counts as a published one from now on."""
    path.write_bytes(pickle.dumps(batch, protocol=2))
    trust(path)


def trust(path: Path) -> None:
    cifar.MD5[path.name] = file_checksum(path, "md5")


def cifar10_batches(parts: tuple[Split, Split]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    (images, labels), test = rows(parts[0]), rows(parts[1])
    train = zip(np.split(images, 5), np.split(labels, 5), strict=True)
    return [(name, *batch) for name, batch in zip(cifar.BATCHES, (*train, test), strict=True)]


def cifar10_pickles(folder: Path, parts: tuple[Split, Split]) -> Path:
    folder = made(folder / "cifar-10-batches-py")
    for name, images, labels in cifar10_batches(parts):
        batch = {"batch_label": name, "labels": labels.tolist(), "data": images, "filenames": []}
        write_batch(folder / name, batch)
    return folder


def cifar100_pickles(folder: Path, parts: tuple[Split, Split]) -> Path:
    folder = made(folder / "cifar-100-python")
    for name, split in zip(("train", "test"), parts, strict=True):
        images, labels = rows(split)
        batch = {
            "coarse_labels": (labels // 5).tolist(),
            "fine_labels": labels.tolist(),
            "data": images,
        }
        write_batch(folder / name, batch)
    return folder


def cifar10_binary(folder: Path, parts: tuple[Split, Split]) -> Path:
    folder = made(folder / "cifar-10-batches-bin")
    for name, images, labels in cifar10_batches(parts):
        records = np.hstack([labels[:, None], images]).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def cifar100_binary(folder: Path, parts: tuple[Split, Split]) -> Path:
    folder = made(folder / "cifar-100-binary")
    for name, (images, labels) in zip(("train", "test"), map(rows, parts), strict=True):
        records = np.hstack([labels[:, None] // 5, labels[:, None], images]).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def strips(folder: Path, parts: tuple[Split, Split]) -> Path:
    from PIL import Image

    made(folder)
    for name, images, _ in cifar10_batches(parts):
        pixels = images.reshape(-1, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{name}.png")
    for name, split in zip(("train", "test"), parts, strict=True):
        (folder / f"{name}_lables.json").write_text(json.dumps(split.labels.tolist()))
    return folder


def idx_files(folder: Path, parts: tuple[Split, Split], gzipped: bool = True) -> Path:
    made(folder)
    arrays = [array for split in parts for array in (split.images[:, 0], split.labels)]
    for name, array in zip(IDX_FILES, arrays, strict=True):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        content = header + array.to(torch.uint8).numpy().tobytes()
        if gzipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def packed(folder: Path, archive: Path) -> Path:
    """The folder as a .tar.gz, with the folder's name inside."""
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, folder.name)
    return archive


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder

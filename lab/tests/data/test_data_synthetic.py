"""The stand-in: the same everywhere, of the right shape, learnable, not perfectly so."""

import pytest
import torch

from sgdf_lab import data
from sgdf_lab.data.arrays import split_digest

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
def test_it_looks_like_the_dataset(name):
    stand_in = data.load(name, synthetic=True)
    spec = data.find(name)
    assert (stand_in.name, stand_in.source) == (name, "synthetic")
    assert (stand_in.classes, stand_in.mean, stand_in.std) == (
        spec.classes,
        spec.mean,
        spec.std,
    )
    for split, count in ((stand_in.train, 2048), (stand_in.test, 512)):
        assert split.images.shape == (count, *spec.shape)
        assert split.images.dtype == torch.uint8
        assert split.labels.dtype == torch.int64
        counts = split.labels.bincount(minlength=spec.classes)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("name", DIGESTS)
def test_it_is_the_same_on_every_machine(name):
    stand_in = data.load(name, synthetic=True)
    assert (split_digest(stand_in.train)[:16], split_digest(stand_in.test)[:16]) == DIGESTS[name]

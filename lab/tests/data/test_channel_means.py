"""CIFAR-100 has no published checksum of its pixels: counts and the means of channels tell it."""

from dataclasses import replace

import pytest
import torch

from data import published
from sgdf_lab import data
from sgdf_lab.data import Split, cifar
from sgdf_lab.data.arrays import TOLERANCE, channel_means
from sgdf_lab.support.errors import UserError


def like_cifar100(order=(0, 1, 2), reverse=False):
    """Images with the means of CIFAR-100's channels, every class equally often."""
    splits = []
    for count in (200, 100):
        random = torch.Generator().manual_seed(count)
        means = torch.tensor(cifar.CIFAR100.channel_means).view(1, 3, 1, 1)[:, list(order)]
        noise = torch.rand(count, 3, 32, 32, generator=random) - 0.5
        images = ((means + 0.8 * noise) * 255).round().to(torch.uint8)
        labels = torch.arange(count) % 100
        splits.append(Split(images.flip(0), labels.flip(0)) if reverse else Split(images, labels))
    return tuple(splits)


@pytest.fixture
def spec(monkeypatch):
    """CIFAR-100 with fewer images, and its real means."""
    few = replace(cifar.CIFAR100, train=200, test=100)
    published.put(monkeypatch, "cifar100", few)


def test_means():
    images = torch.zeros(3, 2, 4, 4, dtype=torch.uint8)
    images[0, 1] = 255
    assert channel_means(Split(images, torch.zeros(3))) == pytest.approx([0, 1 / 3])


@pytest.mark.parametrize("write", [published.cifar100_pickles, published.cifar100_binary])
def test_the_images_may_have_any_order(spec, tmp_path, write):
    for reverse in (False, True):
        folder = tmp_path / str(reverse)
        write(folder, like_cifar100(reverse=reverse))
        assert len(data.load("cifar100", folder).train.labels) == 200


@pytest.mark.parametrize("write", [published.cifar100_pickles, published.cifar100_binary])
def test_other_pixels_are_refused(spec, tmp_path, write):
    write(tmp_path, like_cifar100(order=(2, 1, 0)))
    message = r"other pixels than the published .* means 0\.44.*, not 0\.5071, .* training split"
    with pytest.raises(UserError, match=message):
        data.load("cifar100", tmp_path)


def test_the_tolerance_tells_channels_apart():
    red, green, blue = cifar.CIFAR100.channel_means
    assert min(red - green, green - blue) > 2 * TOLERANCE

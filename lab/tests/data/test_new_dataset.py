"""A dataset of an installed package. One in the lab itself: tests/test_contributing.py."""

import re
import sys

import numpy as np
import pytest

pytest.importorskip("rich")
from sgdf_lab import data
from sgdf_lab.cli.main import main
from sgdf_lab.support.errors import UserError

FILE = '''
"""Stripes, across or down."""

import numpy as np

from sgdf_lab.data import ArrayDataset, Layout, as_split


def read_stripes(path):
    with np.load(path) as arrays:
        return tuple(as_split(arrays[f"{p}_images"], arrays[f"{p}_labels"]) for p in "ab")


DATASET = ArrayDataset(
    name="stripes",
    train=64,
    test=32,
    classes=2,
    shape=(1, 8, 8),
    mean=(0.5,),
    std=(0.5,),
    layouts=(Layout("stripes.npz", "the arrays in", read_stripes),),
)
'''


@pytest.fixture
def folder(tmp_path):
    """A data folder with the stripes in it."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("a", 64), ("b", 32)):
        labels = np.arange(count) % 2
        images = np.zeros((count, 1, 8, 8), np.uint8)
        images[..., ::2] = 200
        images[labels == 1] = images[labels == 1].transpose(0, 1, 3, 2)
        images += random.integers(40, size=images.shape, dtype=np.uint8)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    home = tmp_path / "data" / "stripes"
    home.mkdir(parents=True)
    np.savez(home / "stripes.npz", **arrays)
    return home.parent


@pytest.fixture
def in_a_package_of_its_own(tmp_path, monkeypatch):
    """An installed distribution with an entry point for the dataset."""
    site = tmp_path / "site"
    (site / "theirs-1.0.dist-info").mkdir(parents=True)
    (site / "their_stripes.py").write_text(FILE)
    info = site / "theirs-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sgdf.datasets]\nstripes = their_stripes:DATASET\n")
    monkeypatch.syspath_prepend(site)
    yield info / "entry_points.txt"
    sys.modules.pop("their_stripes", None)


@pytest.mark.usefixtures("in_a_package_of_its_own")
def test_it_loads(folder):
    dataset = data.load("stripes", folder)
    assert dataset.train.images.shape == (64, 1, 8, 8)
    assert dataset.source == f"the arrays in {folder}/stripes/stripes.npz"
    assert data.load("stripes", synthetic=True).classes == 2


@pytest.mark.usefixtures("in_a_package_of_its_own")
def test_it_is_listed_and_fetched_by_hand(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["data", "list", "--data-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"stripes .* 64 / 32 .* 2 .* yes .* the arrays in \S+stripes\.npz", out)
    assert main(["data", "fetch", "stripes", "--data-dir", str(folder)]) == 0
    assert "stripes: 64 training and 32 test images, checked" in capsys.readouterr().out
    elsewhere = tmp_path / "empty"
    assert main(["data", "list", "--data-dir", str(elsewhere)]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"stripes .* no .* put stripes\.npz into {elsewhere}/stripes", out)
    assert main(["data", "fetch", "stripes", "--data-dir", str(elsewhere)]) == 1
    assert "stripes cannot be downloaded: put stripes.npz into" in capsys.readouterr().err


def test_a_package_may_announce_something_else(in_a_package_of_its_own):
    in_a_package_of_its_own.write_text(
        "[sgdf.datasets]\nstripes = their_stripes:read_stripes\nlost = their_stripes:ABSENT\n"
    )
    with pytest.raises(UserError, match=r"'stripes' of their_stripes:read_stripes is a function"):
        data.find("stripes")
    with pytest.raises(UserError, match=r"dataset 'lost' cannot be loaded from their_stripes:ABS"):
        data.find("lost")
    with pytest.raises(UserError, match="did you mean stripes"):
        data.find("stripe")

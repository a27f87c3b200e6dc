"""The records behind the pages about the paper: complete, and they show what is concluded there.

The numbers of the pages are blocks that `benchmarks/paper_blocks.py` makes.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import paper_blocks
from sgdf_lab import paper
from sgdf_lab.runs.records import run_folders

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"


def test_every_run_says_how_it_was_made():
    names = (
        "cifar10-vgg11", "cifar10-vgg11-bf16", "lr-grid-cifar10-vgg11", "cifar10-resnet18",
        "kept-resnet18", "wgan-gp", "vit-b32-random",
    )  # fmt: skip
    for folder in run_folders([RESULTS / name for name in names]):
        environment = json.loads((folder / "env.json").read_text())
        assert environment["command"].startswith("sgdf "), folder
        assert re.fullmatch("[0-9a-f]{40}", environment["commit"]), folder
        assert "H200" in environment["machine"]["device"], folder


def test_the_docs_have_the_status_of_every_preset():
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall("`([a-z0-9-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(paper.PRESETS)


@pytest.mark.parametrize(("kind", "points"), [("line", (101,)), ("landscape", (25, 25))])
def test_landscapes_are_complete_and_have_the_loss_in_their_middle(kind, points):
    folder = RESULTS / "resnet18-landscape"
    assert len(paper_blocks.six()) == len(paper_blocks.SIX)
    for run in paper_blocks.runs_of("cifar10-resnet18"):
        about = json.loads((folder / f"{kind}-{run.config.name}.json").read_text())
        with np.load(folder / f"{kind}-{run.config.name}.npz") as saved:
            assert saved["done"].all()
            surface = saved["values"]
        assert surface.shape == points
        assert surface[tuple(n // 2 for n in points)] == pytest.approx(about["loss"], rel=1e-5)


def test_spectra_and_errors_are_of_the_settings_that_the_pages_name():
    for spectrum in paper_blocks.six().values():
        assert (len(spectrum["eigenvalues"]), spectrum["images"]) == (50, 500)
    for epoch in paper_blocks.EPOCHS:
        record = paper_blocks.read(f"resnet18-errors/gradients-errors-epoch{epoch}.json")
        assert record["settings"]["settings"]["lr"] == 0.05


# --- what is concluded ----------------------------------------------------------------------------


def test_sgd_is_behind_at_its_published_rate_and_level_at_the_matching_one():
    published, matching = map(paper_blocks.vgg11_difference, ("sgd, lr 0.1", "sgd, lr 0.05"))
    assert published.high < 0
    assert matching.low < 0 < matching.high
    assert published.n == matching.n == 3


def test_adam_is_sharpest_and_sgdf_sharper_than_sgd():
    six = {title: (x["eigenvalues"][0], x["trace"], -x["below"])
           for title, x in paper_blocks.six().items()}  # fmt: skip
    ours, adam = six.pop("SGDF, lr 0.5"), six.pop("Adam, lr 0.001")
    for number, others in enumerate(zip(*six.values(), strict=True)):
        assert max(others) < ours[number] < adam[number]


def test_the_filter_is_nearer_over_all_steps_and_further_late():
    filtered, plain, root = map(paper_blocks.ratios, ("sgdf", "sgdf-k", "sgdf-root"))
    assert max(filtered) < 1
    assert all(np.less(root, np.minimum(filtered, plain)))
    late = {name: paper_blocks.ratios(name, paper_blocks.LATE, paper_blocks.SECOND_HALF)
            for name in ("sgdf", "sgdf-k", "sgdf-root")}  # fmt: skip
    assert min(late["sgdf"]) > 1
    assert min(late["sgdf-root"]) > 1
    assert np.allclose(late["sgdf-k"], 1, atol=0.03)

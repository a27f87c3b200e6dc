"""The README: its commands run, its badges are true, its numbers are those of the records."""

import os
import re
import shlex
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image

import loss_curves
from docs.markdown_blocks import ROOT, python_blocks
from sgdf import FilterMuon
from sgdf_lab.cli import train
from sgdf_lab.cli.main import main, parse
from sgdf_lab.models import build_classifier, build_language_model
from sgdf_lab.registry.models import GPTS, LSTMS

README = (ROOT / "README.md").read_text(encoding="utf-8")
LAB = README.partition("## The lab")[2]
LINES = [
    shlex.split(line)[1:] for line in re.findall(r"^sgdf .*$", LAB.partition("\n## ")[0], re.M)
]
SHORTER = {
    "text": ["--set", "steps=2", "--set", "eval_every=1", "--set", "batch=2"],
    "images": ["--epochs", "1", "--set", "size=32"],
}

pytestmark = pytest.mark.usefixtures("one_thread")


def test_own_text_and_images_are_shown():
    assert [words[:2] for words in LINES[:2]] == [["train", "text"], ["train", "images"]]
    assert LINES[2] == ["report", "runs"]


def test_the_swap_is_copied_into_a_file_and_run(tmp_path):
    (block,) = python_blocks(ROOT / "README.md")
    assert not block.excuse
    (tmp_path / "copied.py").write_text(block.code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "copied.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("fused", "foreach")


def test_the_text_of_the_readme_is_trained_on_within_minutes(tmp_path, monkeypatch):
    """No more products than in two minutes at ten billion a second, half of what a core does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("What was said, and what was meant by it.\n" * 400)
    (config,) = train.configs_from(parse(LINES[0]))
    trainer = config.task_definition.module.build_trainer(config, torch.device("cpu"))
    windows = config.epochs * (len(trainer.batches) + trainer.evaluated())
    parameters = sum(p.numel() for p in trainer.model.parameters())
    products = 3 * windows * trainer.batches.context * parameters  # forward and backward
    assert products < 2 * 60 * 10e9


def test_the_badges_say_what_the_package_needs():
    """They are files of the repository: a service elsewhere could say anything."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    torch_version = next(n for n in needs["dependencies"] if n.startswith("torch"))
    expected = {
        "python": needs["requires-python"].removeprefix(">=") + "+",
        "torch": torch_version.removeprefix("torch>=") + "+",
        "licence": needs["license"],
        "tested": "Linux",
    }
    for name, value in expected.items():
        assert f"docs/assets/badges/{name}.svg" in README
        badge = (ROOT / "docs" / "assets" / "badges" / f"{name}.svg").read_text(encoding="utf-8")
        assert badge.count(value) == 2  # to be seen and to be read aloud


def test_the_first_figure_says_what_the_first_table_says():
    drawn = loss_curves.FIGURE.with_suffix(".svg").read_text(encoding="utf-8")
    saved = re.findall(r"<!-- (\d+) steps saved on (\w+) -->", drawn)
    assert saved == [
        (loss_curves.steps_words(task, ours).partition(" of ")[0], rival)
        for task in loss_curves.DRAWN
        for ours, rival in loss_curves.SAVERS.items()
    ]


def test_the_first_screen_is_short():
    """What it is, the swap and what it brings come before the six links, in so many lines."""
    screen = README.partition("\n[Evidence](docs/evidence.md) ·")[0]
    assert len(screen.splitlines()) <= 63
    assert max(len(part.splitlines()) for part in screen.split("\n\n") if "](" in part) <= 7
    links = README[len(screen) :].strip().partition("\n\n")[0]
    assert links.count("](docs/") == 6


def test_the_table_fits_the_page_of_a_repository():
    """Its columns cannot be narrower than their longest words; a page has room for about 90."""
    rows = [line.split("|")[1:-1] for line in loss_curves.table().strip().splitlines()]
    del rows[1]
    columns = zip(*rows, strict=True)
    widths = [max(map(len, re.split(r"\s+|<wbr>", " ".join(column)))) for column in columns]
    assert sum(widths) + 3 * len(widths) <= 90


def test_the_sizes_that_the_first_page_names():
    sizes = []
    for name in {loss_curves.summary_of(task)["model"] for task in loss_curves.ROWS}:
        if name in (*GPTS, *LSTMS):
            model = build_language_model(name, vocabulary=256, context=64)
        else:
            model = build_classifier(name, classes=10, shape=(3, 32, 32))
        sizes.append(sum(p.numel() for p in model.parameters()))
    words = f"{min(sizes) / 1e6:.1f} to {max(sizes) / 1e6:.1f} million parameters"
    assert words == "0.2 to 0.8 million parameters"
    for page in (README, (ROOT / "docs" / "index.md").read_text(encoding="utf-8")):
        assert words in " ".join(page.split())


@pytest.mark.parametrize(("width", "words"), [(128, "43 bytes per parameter"), (384, "15 in")])
def test_the_memory_of_an_eigenbasis(width, words):
    sides = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    params = [torch.nn.Parameter(torch.zeros(*shape)) for shape in sides]
    kept = 0
    for p in params:
        optimizer = FilterMuon([p], eigenbasis=True)
        p.grad = torch.randn_like(p)
        optimizer.step()
        kept += sum(t.numel() * t.element_size() for t in optimizer.state[p].values())
        p.grad = None
    per_parameter = kept / sum(p.numel() for p in params)
    assert f"{per_parameter:.0f}" == words.split()[0]
    assert words in README


@pytest.mark.parametrize("words", LINES[:2], ids=lambda words: words[1])
def test_a_training_of_the_readme(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("What was said, and what was meant by it.\n" * 400)
    for name in ("cat", "dog"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    assert main([*words, *SHORTER[words[1]], "--device", "cpu"]) == 0
    assert len(list((tmp_path / "runs").glob(f"{words[1]}-*/result.json"))) == 1

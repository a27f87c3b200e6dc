"""The commands that the README shows for the lab run, on little data."""

import re
import shlex

import numpy as np
import pytest
from PIL import Image

from docs.markdown_blocks import ROOT
from sgdf_lab.cli.main import main
from sgdf_lab.sweeps.plan import sweep_from_file

LAB = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The lab")[2]
LINES = [
    shlex.split(line)[1:] for line in re.findall(r"^sgdf .*$", LAB.partition("\n## ")[0], re.M)
]
SHORTER = {
    "text": ["--set", "steps=2", "--set", "eval_every=1", "--set", "batch=2"],
    "images": ["--epochs", "1", "--set", "size=32"],
}

pytestmark = pytest.mark.usefixtures("one_thread")


def test_own_text_and_images_and_a_sweep_are_shown():
    assert [words[:2] for words in LINES[:2]] == [["train", "text"], ["train", "images"]]
    assert LINES[2][0] == "sweep"
    assert len(sweep_from_file(ROOT / LINES[2][1]).trials) > 1


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

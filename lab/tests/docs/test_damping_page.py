"""The record of docs/damping.md and its figures; its tables are tested with those of all pages."""

import json
import re
from pathlib import Path

import pytest

from damping_page import all_figures

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "damping.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "results" / "damping.json").read_text(encoding="utf-8"))


def test_the_record_says_how_it_was_made(record):
    assert record["command"].startswith("python benchmarks/damping.py")
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in record["commits"])
    assert record["machine"]["device"]
    assert record["text"] == "encyclopedia.txt"


def test_the_protocol_is_that_of_the_record(record):
    """The page says it in words; these are the numbers in them."""
    case, protocol = record["case"], PAGE.partition("## The protocol")[2]
    gains = ", ".join(f"{gain:g}" for gain in case["gains"])
    rates = ", ".join(f"{rate:g}" for rate in (*case["searched"], *case["larger"]))
    for words in (f"Gains c = {gains}", rates, f"{case['setting']['steps']} steps"):
        assert words in protocol
    assert record["betas"] == [0.9, 0.95]


def test_the_figures_are_there_and_drawn_from_the_record(record):
    figures = all_figures(record)
    shown = re.findall(r"\(figures/(damping-[\w-]+)\.svg\)", PAGE)
    assert sorted(shown) == sorted(figures)
    for name in shown:
        svg = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert "prefers-color-scheme: dark" in svg
    kick = figures["damping-directions"].axes[0].lines[0].get_ydata()
    seed, point = record["case"]["seeds"][0], record["case"]["points"][1]
    row = record["rows"][f"directions on gain 0, step {point}, seed {seed}"]
    assert kick.tolist() == row["branches"]["0"]["kicks"][0]

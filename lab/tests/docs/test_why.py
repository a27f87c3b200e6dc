"""The numbers of docs/why.md are those of its record, and its figures are there."""

import json
import re
from pathlib import Path

import pytest

from sgdf_lab.support.pages import blocks_of
from why_page import all_figures, cost_over, in_a_word, lead_over

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
FILES = [ROOT / "results" / name for name in ("why-gpt.json", "why-gpt-tiny.json")]


@pytest.fixture(scope="module")
def record():
    """The GPU's, once there is one."""
    path = next(path for path in FILES if path.exists())
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_record_says_how_it_was_made(record):
    assert record["command"].startswith("python benchmarks/why.py")
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    assert record["machine"]["device"]


def test_an_answer_is_yes_no_or_not_clear(record):
    """One line, written out: K's short step against m^'s, after the division."""
    table = blocks_of(PAGE)["why: answers"].partition("| divided as in Adam |")[2]
    line = next(line for line in table.splitlines() if "short step" in line)
    expected = []
    for point in record["points"]:
        lead = point["steps"]["adam"]["K"]["short lead"]
        clear = abs(lead["value"]) > 2 * lead["error"]
        expected.append(("yes" if lead["value"] > 0 else "no") if clear else "not clear")
    assert [cell.strip() for cell in line.strip("|").split("|")[1:]] == expected


@pytest.mark.parametrize(
    ("value", "word"), [(0.3, "yes"), (-0.3, "no"), (0.2, "not clear"), (-0.1, "not clear")]
)
def test_an_answer_needs_two_standard_errors(value, word):
    assert in_a_word({"value": value, "error": 0.1}) == word


def test_what_could_not_be_fitted_is_not_clear():
    assert in_a_word({"value": None, "error": None}) == "not clear"


def test_the_cost_is_compared_with_that_of_another_estimate():
    def rows(cost):  # slope 1; short and full step of each replica
        return {"tried": {"part": 0.5, "short": [0.5 - cost / 4] * 3, "full": [1 - cost] * 3}}

    point = {"steps": {"adam": {"2K": rows(0.3), "half": rows(0.6)}}}
    assert cost_over(point, "adam", "2K", "half")["value"] == pytest.approx(0.5)


def test_a_lead_over_another_estimate_is_paired():
    def rows(full):
        return {"tried": {"full": full}}

    point = {"steps": {"adam": {"K": rows([1.0, 2.0, 3.0]), "half": rows([0.5, 1.5, 2.5])}}}
    assert lead_over(point, "adam", "K", "half") == pytest.approx({"value": 0.5, "error": 0.0})


def test_the_figures_are_there_and_drawn_from_the_record(record):
    figures = all_figures(record)
    shown = re.findall(r"\(figures/(why-[\w-]+)\.svg\)", PAGE)
    assert sorted(shown) == sorted(figures)
    for name in shown:
        svg = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert "prefers-color-scheme: dark" in svg
    lines = {line.get_label(): line for line in figures["why-errors"].axes[3].containers}
    drawn = lines["K"].lines[0].get_ydata().tolist()
    assert drawn == [point["adam"]["K"]["ratio"]["value"] for point in record["points"]]

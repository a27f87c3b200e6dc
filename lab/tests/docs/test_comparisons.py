"""The tables at equal tuning are those of the kept runs, and so is every number on the pages."""

import copy
import json
import re
from pathlib import Path

import pytest
from benchmarks import evidence_page

from sgdf_lab.support.pages import filled

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def summaries():
    found = [evidence_page.summary_of(plan) for plan in evidence_page.plans()]
    return [summary for summary in found if summary]


def assert_nearly_equal(one, other):
    """Equal but for the last digits, in which a p value may differ between machines."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_nearly_equal(one[key], other[key])
    elif isinstance(one, list):
        for mine, theirs in zip(one, other, strict=True):
            assert_nearly_equal(mine, theirs)
    else:
        assert one == (pytest.approx(other, rel=1e-9) if isinstance(other, float) else other)


def test_the_summaries_are_those_of_the_runs(summaries):
    for summary in summaries:
        kept = ROOT / "results" / "evidence" / summary["name"] / "summary.json"
        assert_nearly_equal(json.loads(kept.read_text()), json.loads(json.dumps(summary)))


def test_everybody_had_as_many_trials_and_all_seeds(summaries):
    for summary in summaries:
        for contestant in summary["contestants"]:
            assert len(contestant["trials"]) == summary["planned"]["trials"]
            assert len(contestant["seeds"]) == len(summary["planned"]["seeds"]) >= 5


def test_every_run_says_how_it_was_made(summaries):
    for summary in summaries:
        folder = ROOT / "results" / "evidence" / summary["name"]
        lines = "".join(path.read_text() for path in folder.glob("*.jsonl"))
        for line in lines.splitlines():
            run = json.loads(line)
            assert {"command", "commit", "machine"} <= run["env"].keys()
            assert "-dirty" not in run["env"]["commit"]
            assert "/" not in run["config"]["options"].get("corpus", "")


PAGES = ["docs/comparisons.md", "docs/evidence.md", "docs/evidence-forms.md",
         "docs/evidence-protocol.md", "README.md"]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_are_filled_from_the_summaries(summaries, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text, evidence_page.pages(summaries)[page]) == text


def test_other_numbers_make_another_page(summaries):
    changed = copy.deepcopy(summaries)
    for comparison in changed[0]["comparisons"]:
        comparison["rows"][-1]["mean"] += 0.5
    before, after = evidence_page.pages(summaries), evidence_page.pages(changed)
    assert before["docs/comparisons.md"] != after["docs/comparisons.md"]
    assert before["docs/evidence-forms.md"] != after["docs/evidence-forms.md"]


def test_the_figures_are_there(summaries):
    page = (ROOT / "docs" / "comparisons.md").read_text(encoding="utf-8")
    for summary in summaries:
        for name, _ in evidence_page.drawings(summary):
            assert f"figures/evidence/{summary['name']}-{name}.svg" in page
            assert (evidence_page.FIGURES / f"{summary['name']}-{name}.svg").exists()


# --- numbers in other pages -----------------------------------------------------------------------


def test_the_settings_at_which_the_default_is_better(summaries):
    """The number is in the first lines of three pages."""
    (counted,) = re.findall(r"(\d+ of \d+) trials", evidence_page.in_short(summaries))
    for page in ("README.md", "docs/settings.md"):
        assert f"{counted} settings" in (ROOT / page).read_text(encoding="utf-8")


def test_verdicts_are_counted_by_both_rules(summaries):
    kept, before, total = evidence_page.verdict_counts(summaries)
    assert 0 < kept < before < total
    rows = [r for s in summaries for c in s["comparisons"] for r in c["rows"] if r["verdict"]]
    assert all(row["p_verdict"] < 0.01 for row in rows)
    assert all(row["p_choice"] > 0.9 * row["p"] for row in rows)


def test_each_task_fits_on_two_cores_in_an_hour(summaries):
    small = [s for s in summaries if "AMD EPYC" in s["machines"][0]]
    assert max(s["run_hours"] / 2 for s in small) < 1

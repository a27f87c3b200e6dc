"""The tables at equal tuning are those of the kept runs, and so is every number on the pages."""

import copy
import json
from collections import Counter
from pathlib import Path

import pytest
from benchmarks import evidence_page

from sgdf.report.evidence import across
from sgdf.support.pages import filled

ROOT = Path(__file__).parents[2]
EVIDENCE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def summaries():
    found = [evidence_page.summary_of(plan) for plan in evidence_page.plans()]
    return [summary for summary in found if summary]


@pytest.fixture(scope="module")
def first(summaries):
    """The tasks that are counted together."""
    return evidence_page.first_time(summaries)


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


@pytest.mark.parametrize("page", ["docs/comparisons.md", "docs/evidence.md", "README.md"])
def test_the_pages_are_filled_from_the_summaries(summaries, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text, evidence_page.pages(summaries)[page]) == text


def test_other_numbers_make_another_page(summaries):
    changed = copy.deepcopy(summaries)
    for comparison in changed[0]["comparisons"]:
        comparison["rows"][-1]["mean"] += 0.5
    before, after = evidence_page.pages(summaries), evidence_page.pages(changed)
    assert before["docs/comparisons.md"] != after["docs/comparisons.md"]
    assert before["docs/evidence.md"] != after["docs/evidence.md"]


def test_the_figures_are_there(summaries):
    page = (ROOT / "docs" / "comparisons.md").read_text(encoding="utf-8")
    for summary in summaries:
        for name, _ in evidence_page.drawings(summary):
            assert f"figures/evidence/{summary['name']}-{name}.svg" in page
            assert (evidence_page.FIGURES / f"{summary['name']}-{name}.svg").exists()


# --- what the words say ---------------------------------------------------------------------------


def forms_against(summaries, reference):
    found = across.across(summaries, reference)
    return found, [s for s in found.standings if s.optimizer == "filter-adamw"]


@pytest.mark.parametrize("reference", ["adamw", "nadamw"])
def test_every_form_has_a_better_mean_on_text_and_the_perceptron(first, reference):
    words = "every form of FilterAdamW ended there with a better mean than AdamW and NAdamW"
    assert words in " ".join(EVIDENCE.split())
    found, forms = forms_against(first, reference)
    for form in forms:
        for row, summary in zip(form.differences, found.summaries, strict=True):
            if row is not None and summary["model"] in ("gpt-tiny", "mlp"):
                assert across.lead(row, summary)["mean"] > 0, (form.label, summary["name"])
                assert row["verdict"] != "behind"


def test_on_the_vision_transformer_it_does_not_pay(first):
    assert "**On a small vision\n  transformer it does not**" in EVIDENCE
    (summary,) = [s for s in first if s["model"] == "vit-mini"]
    against = {c["reference"]: c["rows"] for c in summary["comparisons"]}
    for row in against["AdamW"]:
        assert row["verdict"] == ("ahead" if row["contestant"] == "Muon" else "")
    behind = [row["contestant"] for row in against["NAdamW"] if row["verdict"] == "behind"]
    assert behind == [evidence_page.LEAN]
    final = {c["label"]: c["final"]["mean"] for c in summary["contestants"]}
    assert sorted(final, key=final.get)[-2:] == ["NAdamW", "Muon"]
    assert min(final, key=final.get) == evidence_page.LEAN
    forms = {label: mean for label, mean in final.items() if label.startswith("FilterAdamW")}
    assert max(forms, key=forms.get).startswith("FilterAdamW, 2K")
    wide = {c["label"] for c in summary["contestants"] if c["final"]["std"] > 0.45}
    assert final.keys() - wide == {"NAdamW", "Muon"}


def test_no_form_is_ahead_of_the_papers_on_three_tasks(first):
    assert "no form is ahead of the paper's on three tasks" in EVIDENCE
    _, forms = forms_against(first, evidence_page.PAPER)
    assert max(form.count("ahead") for form in forms) < 3


def test_how_often_one_form_is_ahead_of_both_rivals(first):
    assert "clearly ahead of both AdamW and NAdamW was not reached" in EVIDENCE
    both = {}
    for reference in ("adamw", "nadamw"):
        found, forms = forms_against(first, reference)
        for form in forms:
            for row, summary in zip(form.differences, found.summaries, strict=True):
                if row is not None and row["verdict"] == "ahead":
                    both[form.label, summary["name"], reference] = True
    pairs = [
        (label, name)
        for label, name, reference in both
        if reference == "adamw" and (label, name, "nadamw") in both
    ]
    assert max(Counter(label for label, _ in pairs).values()) < 3


def test_the_steps_to_where_adamw_ends(first):
    ratios = [
        row["ratio"]
        for summary in first
        if summary["task"] == "text"
        for comparison in summary["comparisons"]
        if comparison["reference"] == "AdamW"
        for row in comparison["reached"]
        if row["contestant"].startswith("FilterAdamW")
    ]
    assert f"after {min(ratios):.2f} to {max(ratios):.2f} of the steps" in " ".join(
        EVIDENCE.split()
    )


def test_how_long_two_cores_took(first):
    minutes = [60 * s["run_hours"] / 2 for s in first if "AMD EPYC" in s["machines"][0]]
    words = f"two CPU cores took {min(minutes):.0f} to {max(minutes):.0f} minutes for each"
    assert words in (ROOT / "README.md").read_text(encoding="utf-8")


def test_muon_is_ahead_on_transformers(first):
    for summary in first:
        if summary["model"] in ("gpt-tiny", "vit-mini"):
            final = {c["label"]: c["final"]["mean"] for c in summary["contestants"]}
            best = min if summary["metric"]["lower_is_better"] else max
            assert best(final, key=final.get) == "Muon"


def test_sgdf_against_sgd_and_nesterov(first):
    assert "clearly so against one of three forms" in EVIDENCE
    found = {s["name"]: {c["reference"]: c["rows"] for c in s["comparisons"]} for s in first}
    for name, reference, verdicts, sign in (
        ("mlp-fashion", "SGD", ["ahead"] * 4, 1),
        ("mlp-fashion", "SGD, Nesterov", [""] * 4, 1),
        ("cnn-cifar10", "SGD", ["", "", ""], 1),
        ("cnn-cifar10", "SGD, Nesterov", ["", "", "behind"], -1),
    ):
        rows = [r for r in found[name][reference] if r["contestant"].startswith("SGDF")]
        assert [row["verdict"] for row in rows] == verdicts
        assert all(sign * row["mean"] > 0 for row in rows)

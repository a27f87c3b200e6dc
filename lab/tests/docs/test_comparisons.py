"""The tables at equal tuning are those of the kept runs, and so is every number on the pages."""

import copy
import json
from pathlib import Path

import pytest
from benchmarks import evidence_page

from sgdf_lab.report.evidence import across
from sgdf_lab.support.pages import filled

ROOT = Path(__file__).parents[3]
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


@pytest.mark.parametrize("page", ["docs/comparisons.md", "docs/evidence.md"])
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

WORDS = " ".join(EVIDENCE.split())
RIVALS = ("AdamW", "NAdamW")
FORMS = (evidence_page.PAPER, evidence_page.LEAN)
TRANSFORMERS = ("gpt-tiny", "gpt-mini", "vit-mini")


@pytest.fixture(scope="module")
def last(summaries):
    """Every task of AdamW's rivals as it was done last, by name."""
    return {
        evidence_page.task_name(s): s
        for s in evidence_page.last_word(summaries)
        if set(RIVALS) <= evidence_page.labels_of(s)
    }


def forms_against(summaries, reference):
    found = across.across(summaries, reference)
    return found, [s for s in found.standings if s.optimizer == "filter-adamw"]


def verdicts(summary):
    """Of both forms against both rivals."""
    return {
        (form, rival): evidence_page.row_of(summary, form, rival)["verdict"]
        for form in FORMS
        for rival in RIVALS
    }


def test_the_default_at_the_same_settings(last):
    same = [
        evidence_page.row_of(s, evidence_page.PAPER, "AdamW")["same_settings"]
        for s in last.values()
        if s["model"] in TRANSFORMERS
    ]
    better, worse = (sum(row[word] for row in same) for word in ("better", "worse"))
    words = f"{better} of {better + worse} trials ended with a better validation value"
    assert words in WORDS
    settings = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert f"{better} of {better + worse} settings" in settings


def test_four_trials_are_worth_more_than_all_of_adamw(last):
    assert "four trials of FilterAdamW have a better expected validation value" in WORDS
    found = [s for s in last.values() if s["model"] in TRANSFORMERS]
    assert len(found) >= 4
    for summary in found:
        best = {c["label"]: c["expected_best"] for c in summary["contestants"]}
        ours, theirs = best[evidence_page.PAPER][3], best["AdamW"][-1]
        assert (ours < theirs) == summary["metric"]["lower_is_better"]
        assert len(best["AdamW"]) in (8, 16)


def test_the_last_word_on_each_task(last):
    """The sentences of "In short" and of the caveats."""
    mini = [last[f"gpt-mini-{text}"] for text in ("encyclopedia", "books")]
    assert set(verdicts(mini[0]).values()) == {"ahead"}
    assert {verdicts(mini[1])[form, "AdamW"] for form in FORMS} == {"ahead"}
    assert {verdicts(mini[1])[form, "NAdamW"] for form in FORMS} == {""}
    leads = [-evidence_page.row_of(s, form, "AdamW")["mean"] for s in mini for form in FORMS]
    assert f"by {min(leads):.2f} to {max(leads):.2f} nats" in WORDS
    tiny = [s for s in last.values() if s["model"] == "gpt-tiny"]
    found = [verdict for s in tiny for verdict in verdicts(s).values()]
    assert (len(found), found.count("ahead"), found.count("behind")) == (8, 2, 0)
    assert "the means are better, two of eight times clearly" in WORDS
    for summary in tiny:
        for form, rival in verdicts(summary):
            assert evidence_page.row_of(summary, form, rival)["mean"] < 0
    for name, first in (("vit-mini-fashion", "ahead"), ("mlp-fashion", "")):
        for form in FORMS:
            assert verdicts(last[name])[form, "AdamW"] == first
            assert verdicts(last[name])[form, "NAdamW"] == "behind"
    assert "it is ahead of AdamW and **behind NAdamW**; on a perceptron it is level" in WORDS


def test_the_aim_was_not_reached(last):
    assert "**The aim was not reached**" in WORDS
    for form in FORMS:
        both = [s for s in last.values() if {verdicts(s)[form, r] for r in RIVALS} == {"ahead"}]
        assert len(both) < 3


def test_the_perceptron_three_times(summaries):
    found = {s["name"]: s for s in summaries}
    rows = [
        evidence_page.row_of(found[f"mlp-fashion{end}"], evidence_page.PAPER, "NAdamW")
        for end in ("", "-again", "-finals")
    ]
    first, second, third = (row["mean"] for row in rows)
    assert [row["verdict"] for row in rows] == ["", "ahead", "behind"]
    words = (
        f"{first:.2f} points ahead of NAdamW with 8 trials, {second:.2f} with 16, clearly, and "
        f"{-third:.2f} behind, clearly"
    )
    assert words in WORDS
    (rival,) = [c for c in found["mlp-fashion-finals"]["contestants"] if c["label"] == "NAdamW"]
    assert rival["finals"][0]["settings"] != rival["chosen"]["settings"]


def test_the_learning_rate_that_scatters(summaries):
    found = {s["name"]: s for s in summaries}
    rates, spreads, seen = [], [], []
    for end in ("", "-finals"):
        summary = found[f"gpt-tiny-encyclopedia{end}"]
        (own,) = [c for c in summary["contestants"] if c["label"] == evidence_page.PAPER]
        rates.append(own["chosen"]["settings"]["lr"])
        spreads.append(own["final"]["std"])
        seen.append(evidence_page.row_of(summary, evidence_page.PAPER, "AdamW")["verdict"])
        (rival,) = [c for c in summary["contestants"] if c["label"] == "AdamW"]
        assert (rival["chosen"]["settings"]["lr"] == rates[-1]) == (end == "")
    assert seen == ["ahead", ""]
    assert f"lr {rates[0]:.4f}, which it was given the first time" in WORDS
    assert f"lr {rates[1]:.4f}, with a standard deviation of {spreads[1]:.2f}" in WORDS


def test_the_filter_before_and_instead_of_momentum(summaries):
    (summary,) = [s for s in summaries if s["name"] == evidence_page.FILTER_IN_FRONT]
    found = {
        (alone, evidence_page.place_of_filter(c)): evidence_page.row_of(
            summary, c["label"], next(
                d["label"] for d in summary["contestants"] if d["optimizer"] == alone
            )
        )["verdict"]
        for alone, filtered in evidence_page.IN_FRONT.items()
        for c in summary["contestants"]
        if c["optimizer"] == filtered
    }  # fmt: skip
    assert found == {
        ("adabelief", "before the momentum"): "behind",
        ("lion", "before the momentum"): "behind",
        ("lion", "instead of the momentum"): "ahead",
        ("muon", "before the momentum"): "behind",
        ("muon", "instead of the momentum"): "behind",
    }
    assert "Instead of Lion's it helps, instead of Muon's it does not." in WORDS
    final = {c["label"]: c["final"]["mean"] for c in summary["contestants"]}
    assert sorted(final, key=final.get)[:2] == ["Muon", "SOAP"]


def test_no_form_is_ahead_of_the_papers_on_three_tasks(first):
    assert "no form is ahead of the paper's on three tasks" in EVIDENCE
    _, forms = forms_against(first, evidence_page.PAPER)
    assert max(form.count("ahead") for form in forms) < 3


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


def test_each_task_fits_on_two_cores_in_an_hour(summaries):
    assert "These tasks fit on\ntwo cores of a CPU" in EVIDENCE
    small = [s for s in summaries if "AMD EPYC" in s["machines"][0]]
    assert max(s["run_hours"] / 2 for s in small) < 1


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

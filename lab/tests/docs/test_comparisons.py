"""The summaries at equal tuning are those of the kept runs."""

import json
from pathlib import Path

import pytest
from benchmarks import evidence_page

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
            assert len(contestant["seeds"]) == len(summary["planned"]["seeds"]) >= 3


def test_every_run_says_how_it_was_made(summaries):
    for summary in summaries:
        folder = ROOT / "results" / "evidence" / summary["name"]
        lines = "".join(path.read_text() for path in folder.glob("*.jsonl"))
        for line in lines.splitlines():
            run = json.loads(line)
            assert {"command", "commit", "machine"} <= run["env"].keys()
            assert "-dirty" not in run["env"]["commit"]
            assert "/" not in run["config"]["options"].get("corpus", "")


def test_the_figures_are_there(summaries):
    page = (ROOT / "docs" / "comparisons.md").read_text(encoding="utf-8")
    for summary in summaries:
        for name, _ in evidence_page.drawings(summary):
            assert f"figures/evidence/{summary['name']}-{name}.svg" in page
            assert (evidence_page.FIGURES / f"{summary['name']}-{name}.svg").exists()


def test_verdicts_are_counted_by_both_rules(summaries):
    kept, before, total = evidence_page.verdict_counts(summaries)
    assert 0 < kept < before < total
    rows = [r for s in summaries for c in s["comparisons"] for r in c["rows"]]
    assert all(row["p_verdict"] < 0.01 for row in rows if row["verdict"])
    assert all(row["p_choice"] > 0.9 * row["p"] for row in rows if row["p"] is not None)


def test_a_task_without_a_form_of_the_tables_is_not_in_them(summaries):
    """As the contest at 11 million parameters, which has other forms of the filter."""
    (one,) = [s for s in summaries if s["name"] == "vit-mini-fashion"]
    kept = [c for c in one["contestants"] if c["label"] != evidence_page.LEAN]
    rows = [{**c, "rows": [r for r in c["rows"] if r["contestant"] != evidence_page.LEAN]}
            for c in one["comparisons"] if c["reference"] != evidence_page.LEAN]  # fmt: skip
    other = {**one, "name": "other", "contestants": kept, "comparisons": rows}
    found = evidence_page.pages([*summaries, other])
    assert "## other" in found["docs/comparisons.md"]["tasks"]
    assert "#other" not in found["docs/evidence.md"]["users of AdamW"]
    assert evidence_page.decided_figure([*summaries, other])


def test_plans_of_grids_and_of_the_map_have_other_pages(monkeypatch, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text('title = "x"\ntask = "digits"\n[[cells]]\noptimizer = "sgd"\n')
    monkeypatch.setattr(evidence_page, "RESULTS", tmp_path)
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "runs.jsonl").write_text("")
    assert evidence_page.summary_of(grid) is None
    assert not any(plan.parent.name == "map" for plan in evidence_page.plans())

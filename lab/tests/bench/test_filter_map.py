"""The map of filters: its plans, and its page from made-up summaries."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import filter_map
import filter_map_page as page
from sgdf_lab.support.figures import as_svg
from sgdf_lab.sweeps.plan import sweep_from_table


def cell(mean, lead=None, verdict=""):
    difference = None if lead is None else {"mean": -lead, "verdict": verdict}
    return {
        "final": {"mean": mean, "std": 0.01, "n": 6},
        "difference": difference,
        "settings": {"lr": 0.01},
    }


COLUMNS = {
    "adam": {"EMA": cell(2.0), "2K": cell(1.95, 0.05, "ahead"), "none": cell(2.3, -0.3, "behind")},
    "orthogonal": {"EMA": cell(1.8), "2K": cell(1.81, -0.01), "none": {**cell(0), "final": None}},
}
CURVE = [(300, 2.3), (600, 2.0), (1200, 1.8)]


def test_all_plans_that_are_known_are_sweeps():
    made = {name: plan for name, plan in filter_map.plans().items() if plan is not None}
    assert {"map-short-adam-tune", "map-adamw-600", "contest-gpt-encyclopedia"} <= made.keys()
    for name, plan in made.items():
        sweep = sweep_from_table(name, plan)
        if "trials" in plan:
            assert len(sweep.trials) == len(plan["cells"])
            assert len(sweep.trials[0]) == plan["trials"]
        else:
            assert len(sweep.configs) == filter_map.runs_of(plan)


def test_a_column_is_every_filter_at_the_rates_that_were_found():
    tuned = {"lr": 0.01, "aux_lr": 0.003, "weight_decay": 0.1}
    rows = tuple(filter_map.FILTERS)
    plan = filter_map.column_plan("eigen", filter_map.text(), "600 steps", tuned, rows)
    assert plan["space"]["pipeline"]["lr"] == [0.0025, 0.04]
    assert (plan["set"]["aux_lr"], plan["set"]["step"]) == (0.003, "eigen")
    assert page.rows_of(plan) == list(rows)


def test_the_steps_of_adamw_are_read_between_its_lengths():
    assert page.steps_needed(CURVE, 2.0) == pytest.approx(600)
    assert page.steps_needed(CURVE, 1.9) == pytest.approx(600 * 2**0.5)
    assert page.steps_needed(CURVE, 1.7) is None
    assert page.steps_needed(CURVE, 2.4) is None


@pytest.mark.parametrize("length", ["short", "images"])
def test_the_heat_map_has_every_cell(length):
    svg = as_svg(page.heat_map(COLUMNS, CURVE, length), {"svg.fonttype": "none"})
    wanted = ["1.9500", "+0.050 · 714", "the average · 600", "diverged"]
    if length == "images":
        wanted = ["1.95", "−0.05", "the average"]
    for words in wanted:
        assert words in svg


def test_adamws_steps_of_a_cell_are_bounded_where_no_length_reaches_it():
    words = [page.needed(CURVE, cell(loss)) for loss in (2.5, 2.0, 1.7)]
    assert words == ["< 300", "600", "> 1200"]


def summary(leads, title="A task"):
    rivals = page.RIVALS
    return {
        "title": f"The contest: {title}",
        "contestants": [{"label": "FilterMuon", "optimizer": "filter-muon"}],
        "comparisons": [
            {"reference": rival, "rows": [{"contestant": "FilterMuon", "verdict": verdict}]}
            for rival, verdict in zip(rivals, leads, strict=True)
        ],
    }


def test_the_aim_counts_tasks_with_all_four_rivals():
    found = {
        "contest-gpt-encyclopedia": summary(["ahead"] * 4, "GPT"),
        "contest-gpt-books": summary(["ahead", "ahead", "", "ahead"]),
        "contest-gpt-0.1m": summary(["ahead"] * 4),
    }
    assert "**FilterMuon**: clearly ahead of all four rivals on 1 of 2 tasks: GPT." in page.aim(
        found
    )


def test_soaps_rule_on_kernels_is_a_rival_and_not_ours():
    cells = filter_map.plans()["contest-vit-cifar10"]["cells"]
    assert [page.rival_of(cell) for cell in cells if page.rival_of(cell)] == list(page.RIVALS)
    own = {"optimizer": "filter-soap", "label": "FilterSOAP, betas (0.85, 0.95)"}
    soap = {**own, "chosen": {"settings": {"slow_weight": 0.0}}}
    assert [page.short_name(c) for c in (own, soap)] == ["FilterSOAP", "SOAP, kernels as matrices"]


def test_muon_and_filter_muon_are_compared_at_the_rate_that_is_best_for_muon(monkeypatch):
    rates = {0.004: (2.0, 1.9, 1.8), 0.016: (1.7, 1.6, 1.5), 0.032: (2.2, 1.5, 1.4)}
    losses = {
        (form, rate): dict.fromkeys((1, 2), values[i])
        for rate, values in rates.items()
        for i, form in enumerate(("muon", "filter-muon", "filter-muon-eigen"))
    }
    plan = filter_map.muon_grid("a GPT", filter_map.text())
    monkeypatch.setattr(filter_map, "plans", lambda: {"muon-gpt": plan})
    monkeypatch.setattr(filter_map, "has_ended", lambda *_: True)
    monkeypatch.setattr(page, "losses_of", lambda _: losses)
    row = page.muon_tables().splitlines()[-1]
    assert "1.7000 (at 0.016)" in row
    assert "1.6000 (+0.1000, 2 of 2; at its own best 1.5000)" in row

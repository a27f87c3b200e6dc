"""The map of filters: its plans, and its page from made-up summaries."""

import argparse
import html
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
    *_, row, _, edges = page.muon_tables().splitlines()
    assert edges == "Chosen at an edge of what was tried: nothing."
    assert "1.7000 (at 0.016)" in row
    assert "1.6000 (+0.1000, 2 of 2; at its own best 1.5000)" in row


# --- the page beside the records ------------------------------------------------------------------


@pytest.fixture(scope="module")
def records():
    return page.summaries()[1]


@pytest.mark.parametrize("length", ["short", "long"])
def test_the_figure_has_the_numbers_of_the_records(records, length):
    columns, curve = page.columns_of(records, length), page.adamw_curve(records)
    drawn = html.unescape((page.FIGURES / f"map-{length}.svg").read_text(encoding="utf-8"))
    assert set(columns) == set(filter_map.COLUMNS)
    for cells in columns.values():
        for own in cells.values():
            assert f"{own['final']['mean']:.4f}" in drawn
            assert page.detail(own, page.lead(own, length), curve, length) in drawn


def test_the_sentences_have_the_numbers_of_the_records(records):
    short, long = (page.columns_of(records, length) for length in ("short", "long"))

    def lead(columns, column, row):
        return f"{page.lead(columns[column][row], ''):.3f}"

    best, row = "eigen-orthogonal", "two averages, constant 0.1"
    both = [lead(columns, c, "constant 0.1") for columns in (short, long) for c in ("sgd", "adam")]
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    for words in (
        f"from {lead(short, best, row)} nats at 600 steps to {lead(long, best, row)} at 1,800",
        f"(p = {long[best][row]['difference']['p_verdict']:.2f} with the luck of the choices)",
        "leads by {} and {} nats at 600 steps, by {} and {} at 1,800".format(*both),
    ):
        assert words in text


def test_the_table_of_the_map_has_the_best_cell_of_a_column_first():
    columns = {
        "adam": {
            row: {**own, "reached": 500.0 if row == "2K" else None}
            for row, own in COLUMNS["adam"].items()
        }
    }
    for own in columns["adam"].values():
        if own["difference"]:
            own["difference"]["p_verdict"] = 0.004
    rows = page.map_table(columns, CURVE, "short").splitlines()[2:]
    assert rows == [
        "| Adam's division | 2K | 1.9500 | **−0.0500** | 0.004 | 500 of 600 | 714 |",
        "| Adam's division | EMA | 2.0000 | – | – | 600 of 600 | 600 |",
        "| Adam's division | none | 2.3000 | **+0.3000** | 0.004 | not reached | 300 |",
    ]


def test_another_draw_of_the_trials_is_as_in_a_simulation():
    import numpy as np

    rng = np.random.default_rng(0)
    own, rival = [1.0, 3.0, 3.5, float("inf")], [1.5, 2.0, 3.0, 4.0]
    best = [rng.choice(values, (40_000, 4)).min(1) for values in (own, rival)]
    assert page.not_better(own, rival) == pytest.approx(np.mean(best[0] >= best[1]), abs=0.01)
    assert page.not_better([1.0], [2.0]) == 0
    assert page.not_better([2.0], [2.0]) == 1


def test_what_was_chosen_at_an_edge_is_named():
    edges = {"Muon": ["largest lr"], "SOAP": [], "AdamW": ["smallest lr", "largest beta1"]}
    words = page.edge_line(edges)
    assert words.endswith(": Muon (largest lr); AdamW (smallest lr, largest beta1).")


# --- running --------------------------------------------------------------------------------------


class Sweep:
    """A process that ends after so many looks, or when it is interrupted."""

    def __init__(self, name, looks, ended):
        self.name, self.looks, self.ended, self.returncode = name, looks, ended, None

    def poll(self):
        self.looks -= 1
        if self.looks < 0 and self.returncode is None:
            self.returncode = 0
            self.ended.add(self.name)
        return self.returncode

    def send_signal(self, _):
        self.returncode = 130

    def wait(self):
        return self.returncode


@pytest.fixture
def machine(monkeypatch):
    """Three plans, of which the last waits for the first; what was started and has ended."""
    looks = {"first": 2, "second": 1, "third": 0}
    started, ended, now = [], set(), [0.0]
    monkeypatch.setattr(filter_map, "plans", lambda: {
        "first": {}, "second": {}, "third": {} if "first" in ended else None})  # fmt: skip
    monkeypatch.setattr(filter_map, "write", lambda _: None)
    monkeypatch.setattr(filter_map, "wanted", lambda name, plan, options: (
        plan is not None and filter_map.named(name, options) and name not in ended))  # fmt: skip
    monkeypatch.setattr(filter_map, "sweep", lambda name, plan, options: (
        started.append(name) or Sweep(name, looks[name], ended)))  # fmt: skip
    monkeypatch.setattr(filter_map.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(filter_map.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    return started, ended


def options(**changes):
    given = {"minutes": 60.0, "only": None, "at_once": 1, "wait": False}
    return argparse.Namespace(**{**given, **changes})


def test_plans_run_in_order_and_what_one_finds_makes_the_next(machine):
    started, ended = machine
    filter_map.run(options())
    assert started == ["first", "second", "third"]
    assert ended == set(started)


def test_a_run_stops_when_its_time_is_up_and_goes_on_where_it_stopped(machine, capsys):
    started, ended = machine
    filter_map.run(options(minutes=0.4 / 60, at_once=2))  # two looks
    assert (started, ended) == (["first", "second"], {"second"})
    assert "first: stopped, exit code 130" in capsys.readouterr().out
    filter_map.run(options())
    assert started[2:] == ["first", "third"]


def test_only_the_named_plans_are_run(machine):
    started, _ = machine
    filter_map.run(options(only=["sec"]))
    assert started == ["second"]

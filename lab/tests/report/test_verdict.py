"""One rule of the verdict, the same for a page, the terminal and the evidence."""

import dataclasses
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import scipy.stats

from report import made
from report.test_evidence import DIGITS, TEXT, Value, run, sweep_with
from sgdf_lab import tasks
from sgdf_lab.reports import numbers, page, wording
from sgdf_lab.reports.choice import choices_of
from sgdf_lab.reports.comparison import Comparison, compare_runs
from sgdf_lab.reports.evidence import Summary
from sgdf_lab.reports.evidence.summary import summarize
from sgdf_lab.reports.numbers import PairedDifference
from sgdf_lab.reports.wording import headline
from sgdf_lab.runs.records import RunRecord, read_runs
from sgdf_lab.sweeps.contestants import Contestant, contestants_of
from sgdf_lab.sweeps.plan import Tuned, sweep_from_file, sweep_from_table

ROOT = Path(__file__).parents[3]
REFERENCE = (60.0, 61.0)


def comparison(out: Path, **finals: tuple[float, ...]) -> Comparison:
    """SGDF against optimizers with these final values, one for each seed."""
    for name, values in {"sgdf": REFERENCE, **finals}.items():
        for seed, final in enumerate(values):
            made.run(out, made.config(name.replace("_", "-"), seed), [50, 55, final])
    return made.compare(out)


# --- the same seeds as a grid and as the last stage of a sweep with trials ------------------------

NAMES = ("adamw", "lion", "radam")  # the first is the reference
#: Final values by seed of all three, and the verdicts on the others; every number is scipy's.
CASES: dict[str, tuple[list[list[Value]], tuple[str, str]]] = {
    "ahead and behind": ([[60, 61, 62], [70, 71.01, 72], [50, 51.01, 52]], ("ahead", "behind")),
    "an interval without zero is not enough": (
        [[80, 81, 82], [84, 84, 85], [80, 82, 84]],
        ("", ""),
    ),
    "p is below 0.01 before the correction only": (
        [[60, 61, 62], [61.85, 63.2, 64.52], [60.5, 61.2, 62.5]],
        ("", ""),
    ),
    "equal differences": ([[80, 81, 82], [84, 85, 86], [70, 71.01, 72]], ("", "behind")),
    "one seed": ([[80, 81, 82], [99, None, None], [70, 71.01, 72]], ("", "behind")),
    "no seed of both": ([[80, None, None], [None, 81, 82], [70, None, 71]], ("", "")),
    "who loses its bad seeds is not ahead": (
        [[60, 61, 62], ["diverged", 71.01, 72], [50, 51.0001, "failed"]],
        ("", "behind"),
    ),
    "what the reference lost": (
        [[60, "diverged", 62], [70, 71, 72.0001], [50, 51, 52.0001]],
        ("ahead", ""),
    ),
    "what is incomplete": (
        [[60, 61, 62], [70, 71.0001, None], [50, "unfinished", 52.0001]],
        ("", ""),
    ),
}


def by_grid(out: Path, table: dict[str, Any], values: Sequence[Sequence[Value]]) -> list[dict]:
    grid = sweep_from_table("ours", {k: v for k, v in table.items() if k != "trials"})
    for name, own in zip(NAMES, values, strict=True):
        configs = [config for config in grid.configs if config.optimizer == name]
        for config, value in zip(configs, own, strict=True):
            run(out, config, value)
    (found,) = compare_runs(read_runs([out])[0], grid.configs)
    rows = {row.optimizer: row.paired.as_json() for row in found.rows if row.paired}
    return [rows[name] for name in NAMES[1:] if name in rows]


def by_trials(out: Path, table: dict[str, Any], values: Sequence[Sequence[Value]]) -> list[dict]:
    """Trials so far apart that no luck was in the choice."""
    sweep = sweep_with(out, table, [[50, 200, 300, 400] if "steps" in table["set"] else
                                    [50, 40, 30, 20]] * 3, values)  # fmt: skip
    return summarize(sweep, read_runs([out])[0])["comparisons"][0]["rows"]


@pytest.mark.parametrize("way", [by_grid, by_trials])
@pytest.mark.parametrize("table", [DIGITS, TEXT], ids=["accuracy", "loss"])
@pytest.mark.parametrize(("values", "verdicts"), CASES.values(), ids=CASES)
def test_a_verdict_by_both_ways(tmp_path, way, table, values, verdicts):
    if table is TEXT:  # lower is better
        values = [[v if v is None or isinstance(v, str) else 100 - v for v in own]
                  for own in values]  # fmt: skip
    found = way(tmp_path, {**table, "cells": [{"optimizer": name} for name in NAMES]}, values)
    expected = [by_hand(own, values[0]) for own in values[1:]]
    corrected = numbers.holm([each["p"] for each in expected])
    for row, each, p_holm, verdict in zip(found, expected, corrected, verdicts, strict=True):
        for name, value in {**each, "p_holm": p_holm}.items():
            assert row[name] == (value and pytest.approx(value, rel=1e-6)), name
        assert row["verdict"] == verdict


def by_hand(own: Sequence[Value], reference: Sequence[Value]) -> dict[str, Any]:
    seeds = dict(enumerate(zip(own, reference, strict=True), start=1))
    lost = [s for s, pair in seeds.items() if {*pair} & {"diverged", "failed"}]
    missing = [s for s, pair in seeds.items() if {*pair} & {None, "unfinished"} and s not in lost]
    pairs = [pair for s, pair in seeds.items() if s not in (*lost, *missing)]
    differences = [a - b for a, b in pairs]
    found = {"n": len(pairs), "lost": lost, "missing": missing, "p": None, "low": None}
    if max(differences, default=0) - min(differences, default=0) > 1e-9:
        test = scipy.stats.ttest_rel(*zip(*pairs, strict=True))
        found |= {"p": test.pvalue, "low": test.confidence_interval(0.95).low}
    return found | {"mean": statistics.fmean(differences) if differences else None}


# --- in words -------------------------------------------------------------------------------------


def test_a_lead_has_its_size_its_interval_and_its_p_value(tmp_path: Path) -> None:
    # Differences -10 and -9.9: mean -9.95, half-width 12.70620 * 0.05, t = 199, p = 0.0032.
    behind = headline(comparison(tmp_path / "a", adam=(50.0, 51.1)))
    assert "adam is behind" in behind
    assert re.findall(r"\d+\.\d+", behind) == ["9.95", "9.31", "10.59", "0.0032"]
    ahead = headline(comparison(tmp_path / "b", adam=(70.0, 70.9)))
    assert "adam is ahead" in ahead
    assert re.findall(r"\d+\.\d+", ahead)[0] == "9.95"
    unclear = headline(comparison(tmp_path / "c", adam=(58.0, 59.3)))
    assert unclear.startswith("No difference found between sgdf and adam")


def test_lost_seeds_are_said(tmp_path: Path) -> None:
    for seed in range(10):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60 + 0.1 * seed])
        status = "finished" if seed < 3 else "diverged"
        made.run(tmp_path, made.config("adam", seed), [50, 55, 70 + 0.11 * seed], status=status)
    words = headline(made.compare(tmp_path))
    assert "No verdict" in words
    assert "adam 7 of 10" in words


def test_several_are_grouped_and_many_are_counted(tmp_path: Path) -> None:
    exact = {"adam": (50.0, 51.001), "lion": (40.0, 41.001), "radam": (70.0, 70.999)}
    found = comparison(tmp_path / "a", **exact, nadam=(60.2, 60.3), adabelief=(60.0,))
    words = headline(found)
    assert "radam is ahead by 9.9" in words or "radam is ahead by 10.0" in words
    assert "adam and lion are behind by" in words
    assert "no difference found for nadam" in words
    assert words.endswith("No verdict on adabelief: one seed is not enough.")
    names = ("adam", "lion", "radam", "nadam", "adabelief")
    many = comparison(tmp_path / "b", **dict.fromkeys(names, (60.5, 60.9)))
    assert "any of 5 others" in headline(many)


def test_without_an_interval_there_is_no_verdict(tmp_path: Path) -> None:
    assert "one seed is not enough" in headline(comparison(tmp_path / "one", adam=(90.0,)))
    alike = headline(comparison(tmp_path / "alike", adam=(61.0, 62.0)))
    assert "the difference is the same in all seeds" in alike
    made.run(tmp_path / "none", made.config("sgdf", 0), [50, 55, 60])
    made.run(tmp_path / "none", made.config("adam", 1), [50, 55, 60])
    assert "no seed was run with both" in headline(made.compare(tmp_path / "none"))


def test_nothing_to_compare(tmp_path: Path) -> None:
    assert headline(comparison(tmp_path / "a")).startswith("Only sgdf was run")
    made.run(tmp_path / "b", made.config("sgdf"), [50, 55, 60])
    made.run(tmp_path / "b", made.config("adam"), [50], status="diverged")
    assert headline(made.compare(tmp_path / "b")).startswith("Only sgdf has finished")
    made.run(tmp_path / "c", made.config("sgdf"), [50], status=None)
    assert headline(made.compare(tmp_path / "c")) == "No run has finished yet."


def test_a_baseline_is_the_reference(tmp_path: Path) -> None:
    """As in `sgdf evidence`, so that both correct the p values of the same comparisons."""
    assert comparison(tmp_path, sgd=(60.0, 61.5), adamw=(60.0, 61.0)).reference == "sgd"


def test_only_chosen_settings_are_named(tmp_path: Path) -> None:
    """By the optimizer's name only; where nothing was chosen, with their settings."""
    for lr, final in ((0.1, 60.0), (0.3, 70.0)):
        for seed in (0, 1):
            for name, lead in (("sgdf", 1.0 + 0.01 * seed), ("sgd", 0.0)):
                values = [50, 55, final + lead]
                extra = {"validation_accuracy": values}
                config = made.config(name, seed, lr=lr, validation=9)
                made.run(tmp_path / "chosen", config, values, extra=extra)
                made.run(tmp_path / "open", made.config(name, seed, lr=lr), values)
    chosen = headline(made.compare(tmp_path / "chosen"))
    assert chosen.startswith("Against sgd, sgdf is ahead by 1.0")
    assert "sgdf (lr 0.1)" in headline(made.compare(tmp_path / "open"))


def test_a_longer_run_takes_nobodys_place(tmp_path: Path) -> None:
    """By validation it would be chosen, and hide the fair comparison; the verdict names lengths."""
    for optimizer, epochs, final in (("sgdf", 6, 90.0), ("sgdf", 2, 60.0), ("adamw", 2, 65.0)):
        for seed in (0, 1):
            values = [50.0] * (epochs - 1) + [final + 0.1 * seed]
            config = made.config(optimizer, seed, epochs=epochs, validation=9)
            made.run(tmp_path, config, values, extra={"validation_accuracy": values})
    found = made.compare(tmp_path)
    assert found.set_aside == set()
    words = headline(found)
    assert "sgdf (2 epochs)" in words
    assert "adamw (2 epochs)" in words


@pytest.mark.parametrize(
    "settings",
    [
        [{"lr": 0.1234567}, {"lr": 0.12345671}],
        [{"schedule": "cosine"}, {"schedule": "cosine", "decay": 0.5}],
    ],
    ids=["lr", "without words"],
)
def test_settings_that_look_alike_are_told_apart(tmp_path: Path, settings: list[dict]) -> None:
    for own, final in zip(settings, (60.0, 70.0), strict=True):
        for seed in (0, 1):
            values = [50.0, 55.0, final + 0.1 * seed]
            config = made.config("sgdf", seed, validation=9, **own)
            made.run(tmp_path, config, values, extra={"validation_accuracy": values})
    found = made.compare(tmp_path)
    assert len({row.label for row in found.rows}) == 2
    assert headline(found).startswith("Only sgdf was run")


@pytest.mark.parametrize(
    ("mean", "p", "accuracy", "distance"),
    [
        (1.0, 0.009, "ahead", "behind"),
        (-1.0, 0.009, "behind", "ahead"),
        (-1.0, 0.01, "", ""),
        (1.0, None, "", ""),
        (None, None, "", ""),
    ],
)
def test_the_rule(mean: float | None, p: float | None, accuracy: str, distance: str) -> None:
    found = PairedDifference(3, mean)
    for task, word in (("cifar10", accuracy), ("wgan-gp", distance)):
        metric = tasks.find(task).metric
        assert numbers.verdict(found, p, metric) == word
        barred = dataclasses.replace(found, barred=("ahead",))
        assert numbers.verdict(barred, p, metric) == ("" if word == "ahead" else word)


# --- the same runs, by every way to look at them --------------------------------------------------


def recorded() -> dict[str, Tuned]:
    """The tuned sweeps whose runs are in the repository."""
    plans = sorted((ROOT / "benchmarks" / "evidence").rglob("*.toml"))
    sweeps = {plan.stem: sweep_from_file(plan) for plan in plans if runs_of(plan.stem).exists()}
    return {name: sweep for name, sweep in sweeps.items() if isinstance(sweep, Tuned)}


def runs_of(name: str) -> Path:
    return ROOT / "results" / "evidence" / name / "runs.jsonl"


RECORDED = recorded()


@pytest.mark.parametrize("name", RECORDED)
def test_page_terminal_and_report_agree_with_the_evidence(name: str) -> None:
    """The last stage as `sgdf sweep` shows it, and `sgdf report` of all runs without the plan."""
    sweep, records = RECORDED[name], read_runs([runs_of(name)])[0]
    contestants, summary = contestants_of(sweep, records), summarize(sweep, records)
    last = [run.record for c in contestants for run in c.seeds if run.record]
    for stage in compare_runs(last, choices=choices_of(contestants)):
        own = against_the_same(stage, sweep, records, summary)
        assert_same(stage, contestants, own, has_verdict=True)
    (found,) = compare_runs(records)
    own = against_the_same(found, sweep, records, summary)
    assert_same(found, contestants, own, has_verdict=False)


def against_the_same(
    found: Comparison, sweep: Tuned, records: Sequence[RunRecord], summary: Summary
) -> Summary:
    """Where no contestant is a usual baseline, evidence is asked for the one that is shown."""
    if summary["comparisons"]:
        return summary
    (shown,) = [row.cell.config.cell_key for row in found.rows if row.is_reference] or [None]
    labels = [
        values["label"]
        for c, values in zip(contestants_of(sweep, records), summary["contestants"], strict=True)
        if c.chosen and c.chosen.record and c.chosen.record.config.cell_key == shown
    ]
    return summarize(sweep, records, labels) if labels else summary


def assert_same(
    found: Comparison,
    contestants: Sequence[Contestant],
    summary: Summary,
    *,
    has_verdict: bool,
) -> None:
    """What is shown of each chosen setting is what `sgdf evidence` shows of its contestant."""
    labels = {
        c.chosen.record.config.cell_key: values
        for c, values in zip(contestants, summary["contestants"], strict=True)
        if c.chosen and c.chosen.record and all(run.has_ended for run in c.seeds)
    }
    (reference,) = [labels.get(r.cell.config.cell_key) for r in found.rows if r.is_reference]
    known = {
        row["contestant"]: row
        for comparison in summary["comparisons"]
        if reference and comparison["reference"] == reference["label"]
        for row in comparison["rows"]
    }
    on_page, in_terminal = page.table(found), made.in_terminal(found, 500)
    for row in found.rows:
        values = labels.get(row.cell.config.cell_key)
        if values is None or (row.paired and not known):
            assert row.verdict == ""
            continue
        assert values["final"] == pytest.approx(row.final and dataclasses.asdict(row.final))
        if row.paired is None:
            continue
        expected = known[values["label"]]
        names = ("n", "mean", "low", "high", "p")
        for name in (*names, "p_holm", "p_choice", "p_verdict") if has_verdict else names:
            assert getattr(row.paired, name) == pytest.approx(expected[name]), name
        assert row.verdict == (expected["verdict"] if has_verdict else "")
        shown = wording.against_reference(row, found.result.digits)
        assert shown.endswith(row.verdict or "]") or row.paired.low is None
        assert shown in on_page
        assert shown in in_terminal
    if known:
        assert found.needs_plan != has_verdict
        assert ("`sgdf evidence PLAN`" in headline(found)) == found.needs_plan

"""The summary of a tuned sweep, of made-up runs: every number by hand."""

import dataclasses
import io
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

from report import made
from sgdf_lab.cli.main import main
from sgdf_lab.cli.sweep import show_stage
from sgdf_lab.reports import wording
from sgdf_lab.reports.choice import choices_of
from sgdf_lab.reports.evidence import Summary, across, figures, tables
from sgdf_lab.reports.evidence.summary import summarize
from sgdf_lab.reports.tables import escaped
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.packed import pack
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import contestants as stages
from sgdf_lab.sweeps.contestants import contestants_of
from sgdf_lab.sweeps.plan import Tuned, lines_of_search, sweep_from_table, with_trials

CELLS = [
    {"optimizer": "adamw"},
    {"optimizer": "filter-adamw", "gain_scale": 1.0},
    {"optimizer": "filter-adamw", "gain_scale": 2.0},
]
TRIALS, SEEDS = 4, [1, 2, 3]
BASE = {"title": "Ours", "trials": TRIALS, "seeds": SEEDS, "cells": CELLS}
DIGITS = {**BASE, "task": "digits", "epochs": 2, "set": {"validation": 200}}
TEXT = {
    **BASE, "task": "text", "model": "gpt-tiny", "data": "synthetic",
    "set": {"steps": 40, "eval_every": 20},
}  # fmt: skip

Value = float | str | None  # a final value, how the run ended otherwise, or None: no run


def run(out: Path, config: Config, value: Value, *, at_half: float | None = None) -> None:
    """A run that ends at a value: 1 better on test data than on validation data."""
    if value is None:
        return
    if value in ("diverged", "failed", "unfinished"):
        ends = {"diverged": "diverged", "failed": None, "unfinished": None}
        extra = {"validation_accuracy": 1.0, "val_loss": 9.0}
        folder = made.run(out, config, [10.0], status=ends[str(value)], extra=extra)
        if value == "failed":
            made.write(folder / "failure.json", [{"error": "no memory"}])
        return
    end = float(value)
    half = end if at_half is None else at_half
    if config.task == "digits":
        extra: dict[str, Any] = {"validation_accuracy": [half, end]}
        made.run(out, config, [half + 1, end + 1], extra=extra)
    else:
        tested = {"val_loss": [half, end], "test_loss": [None, end + 1], "bits_per_byte": 1.0}
        made.run(out, config, [0, 0], extra=tested)


def sweep_with(
    out: Path,
    table: dict[str, Any],
    trials: Sequence[Sequence[Value]],
    seeds: Sequence[Sequence[Value]] = (),
) -> Tuned:
    """A sweep with these trials and seeds on disk, a list for each contestant."""
    sweep = with_trials(sweep_from_table("ours", table))
    for i, values in enumerate(trials):
        for config, value in zip(sweep.trials[i], values, strict=True):
            run(out, config, value)
    for i, values in enumerate(seeds):
        best = contestants_of(sweep, read_runs([out])[0])[i].chosen
        assert best is not None
        for seed, value in zip(SEEDS, values, strict=True):
            run(out, dataclasses.replace(best.config, seed=seed), value)
    return sweep


def summary_of(out: Path, *arguments: Any, references: Sequence[str] = ()) -> Summary:
    sweep = sweep_with(out, *arguments)
    found = summarize(sweep, read_runs([out])[0], references)
    json.dumps(found, allow_nan=False)
    return found


FINALS = [[80, 70, 75, 60], [82, 84, 70, 83.5], [85, 60, 61, 62]]
AFTER = [[80, 81, 82], [84, 84, 85], [80, 82, 84]]


def test_names_choices_and_finals(tmp_path):
    summary = summary_of(tmp_path, DIGITS, FINALS, AFTER)
    ours = summary["contestants"]
    assert [c["label"] for c in ours] == ["AdamW", "FilterAdamW, K", "FilterAdamW, 2K"]
    assert [c["chosen"]["value"] for c in ours] == [80, 84, 85]
    assert [c["final"]["mean"] for c in ours] == pytest.approx([82, 85 + 1 / 3, 83])
    assert ours[0]["final"] == {"mean": 82, "std": 1, "n": 3}
    assert ours[1]["seeds"]["3"] == {"status": "finished", "value": 86}
    assert summary["metric"]["key"] == "test_accuracy"
    assert summary["validation"] == {
        "key": "validation_accuracy", "words": "validation accuracy",
    }  # fmt: skip
    assert (summary["runs"], summary["commits"]) == (3 * 4 + 3 * 3, ["abc"])
    assert summary["machines"] == ["a CPU, torch unknown"]


def test_the_page_of_the_sweep_knows_how_it_was_chosen(tmp_path):
    sweep = sweep_with(tmp_path, DIGITS, FINALS, AFTER)
    ours = choices_of(stages.contestants_in(sweep, tmp_path))
    assert ours == choices_of(contestants_of(sweep, read_runs([tmp_path])[0]))
    assert [choice.seeds for choice in ours.values() if choice] == [list(v) for v in AFTER]


def with_finals(out: Path, finals: Sequence[Sequence[Value]]) -> Tuned:
    """Two finalists of each of three contestants, with seeds 8 and 9: in order of their trials."""
    table = {**DIGITS, "finalists": 2, "choice_seeds": [8, 9]}
    sweep = sweep_with(out, table, FINALS)
    for contestant, values in zip(contestants_of(sweep, read_runs([out])[0]), finals, strict=True):
        configs = [
            dataclasses.replace(final.trial.config, seed=seed)
            for final in contestant.finals
            for seed in (8, 9)
        ]
        for config, value in zip(configs, values, strict=True):
            run(out, config, value)
    return sweep


def test_the_choice_among_finalists(tmp_path):
    finals = [[70, 72, 74, 76], [84, 80, "diverged", 90], ["failed", 80, "diverged", 80]]
    sweep = with_finals(tmp_path, finals)
    contestants = contestants_of(sweep, read_runs([tmp_path])[0])
    trials = [c.chosen.validation for c in contestants if c.chosen]
    assert trials == [75, 84, 85], "the better mean; the one without a loss; the best trial"


def test_only_the_last_stage_of_a_sweep_has_a_verdict(tmp_path):
    """The seeds of the stages before choose the settings: by them, finalists are far apart."""
    table = {**DIGITS, "cells": [{"optimizer": "adamw"}, {"optimizer": "lion"}],
             "finalists": 2, "choice_seeds": [8, 9, 10]}  # fmt: skip
    sweep = sweep_with(tmp_path, table, [[70, 60, 50, 40], [90, 80, 50, 40]])
    finalists = [[70, 70.1, 70.2], [70, 71, 72], [90, 90.2, 90.3], [80, 80.2, 80.5]]
    for config, value in zip(
        (c for c in stages.finals_of(sweep, tmp_path).configs),
        itertools.chain(*zip(*finalists, strict=True)),
        strict=True,
    ):
        run(tmp_path, config, value)
    for config in stages.best_of(sweep, tmp_path).configs:
        end = 70.3 if config.optimizer == "adamw" else 90.3 + 0.1 * config.seed
        run(tmp_path, config, end)
    summary = summarize(sweep, read_runs([tmp_path])[0])
    (expected,) = summary["comparisons"][0]["rows"]
    assert (expected["contestant"], expected["verdict"]) == ("Lion", "ahead")
    for stage, is_last in zip(stages.stages(sweep, tmp_path), (False, False, True), strict=True):
        output = io.StringIO()
        show_stage(stage, tmp_path, Console(file=output, width=300))
        on_page = (tmp_path / f"{stage.name}.html").read_text()
        assert all(line in on_page for line in lines_of_search(sweep)) == is_last
        for shown in (output.getvalue(), on_page):
            shown = " ".join(shown.split()).partition("Intervals")[0]
            assert ("`sgdf evidence" in shown) != is_last
            assert (" is ahead by " in shown) == is_last
            mean = wording.signed(expected["mean"])
            assert (f"{mean} [" in shown) == is_last
            assert bool(re.search(r"\] (ahead|behind)", shown)) == is_last


def test_a_long_title_of_a_figure_has_several_lines(tmp_path):
    title = "A title of many words that does not fit into the width of a figure on a page, at all"
    summary = summary_of(tmp_path, {**DIGITS, "title": title}, FINALS, AFTER)
    for _, figure in figures.figures(summary):
        lines = figure.get_suptitle().splitlines()
        assert " ".join(lines) == title
        renderer = FigureCanvasAgg(figure).get_renderer()
        for line in lines:
            box = figure.text(0, 0, line, fontweight="bold", fontsize=11).get_window_extent(
                renderer
            )
            assert box.width < figure.bbox.width


def test_finals_in_the_summary_and_the_tables(tmp_path):
    sweep = with_finals(tmp_path, [[70, 72, 74, 76], [84, 80, "diverged", 90], [80, 80, 60, None]])
    summary = summarize(sweep, read_runs([tmp_path])[0])
    assert summary["planned"]["choice_seeds"] == [8, 9]
    first, second, third = (c["finals"] for c in summary["contestants"])
    assert [final["mean"] for final in first] == [71, 75]
    assert [final["mean"] for final in second] == [82, None]
    assert third[1]["seeds"]["9"] == {"status": "missing", "value": None}
    assert not across.is_complete(summary)
    assert any("1 run of finalists to go (FilterAdamW, 2K: 1)" in n for n in summary["notes"])
    assert any("1 run of finalists diverged or failed" in note for note in summary["notes"])
    (choice,) = [table for table in tables.tables(summary) if table.name == "choice"]
    assert {row[0]: row[1:] for row in choice.rows} == {
        "AdamW": ("80.00", "71.00", "75.00", "2"),
        "FilterAdamW, K": ("84.00", "82.00", "82.00", "1"),
        "FilterAdamW, 2K": ("85.00", "80.00", "80.00", "1"),
    }
    own = summary["contestants"][0]["within_margin"]["of_own_best"]
    assert own == 1 / 4, "near the best trial, whoever was chosen"
    text = tables.markdown(summary)
    assert "Of the 2 best trials, the one with the best mean over 2 other seeds was chosen." in text


def test_a_diverged_seed_is_counted_and_marked(tmp_path):
    after = [AFTER[0], ["diverged", 84, 86], [80, "failed", None]]
    summary = summary_of(tmp_path, DIGITS, FINALS, after)
    assert summary["contestants"][1]["final"]["n"] == 2
    notes = " ".join(summary["notes"])
    assert "2 seeds diverged or failed (FilterAdamW, K: 1; FilterAdamW, 2K: 1)" in notes
    assert "Incomplete: 1 seed to go (FilterAdamW, 2K: 1)" in notes
    rows = {row[0]: row[1:] for row in next(tables.differences(summary)).rows}
    assert rows["FilterAdamW, K"][0].endswith("]*")
    assert rows["FilterAdamW, 2K"] == ("+0.00*", "one seed", "")
    shown = {row[0]: row[1] for row in tables.results(summary).rows}
    assert shown["FilterAdamW, K"].endswith("(2 of 3)*")
    assert shown["AdamW"].endswith("(3)")


def test_a_lost_trial_counts_as_the_worst_finished_of_anyone(tmp_path):
    summary = summary_of(tmp_path, DIGITS, [FINALS[0], [82, "diverged", "failed", 83], FINALS[2]])
    ours = summary["contestants"]
    assert summary["worst_finished"] == 60
    # Sorted from the worst: 60, 60, 82, 83. Of two: the best is 83 in 3 of 6, 82 in 2, 60 in 1.
    two = (3 * 83 + 2 * 82 + 60) / 6
    assert ours[1]["expected_best"] == pytest.approx(
        [(60 + 60 + 82 + 83) / 4, two, (3 * 83 + 82) / 4, 83]
    )
    assert ours[0]["expected_best"][-1] == 80
    assert ours[1]["within_margin"] == {"of_own_best": 0.5, "of_best_of_all": 0}
    assert ours[2]["within_margin"] == {"of_own_best": 0.25, "of_best_of_all": 0.25}
    (note,) = [note for note in summary["notes"] if "trials diverged or failed" in note]
    assert note.startswith("2 trials diverged or failed (FilterAdamW, K: 2)")
    assert "the worst finished one, 60" in note


def test_who_has_no_finished_trial_is_shown_without_numbers(tmp_path):
    summary = summary_of(tmp_path, DIGITS, [FINALS[0], ["diverged"] * 4, FINALS[2]], [AFTER[0]])
    lost = summary["contestants"][1]
    assert (lost["chosen"], lost["final"], lost["seeds"]) == (None, None, {})
    assert lost["expected_best"] == [60] * 4
    assert lost["within_margin"] == {"of_own_best": None, "of_best_of_all": 0}
    assert "Without a finished trial, and so without a setting: FilterAdamW, K." in summary["notes"]
    assert tables.results(summary).rows[-1][1] == "–"


def test_all_trials_of_all_diverged(tmp_path):
    summary = summary_of(tmp_path, DIGITS, [["diverged"] * 4] * 3)
    assert summary["worst_finished"] is None
    assert [c["expected_best"] for c in summary["contestants"]] == [[], [], []]
    assert tables.markdown(summary)
    assert list(figures.figures(summary)) == []


def test_an_incomplete_sweep_says_what_is_missing(tmp_path):
    summary = summary_of(tmp_path, DIGITS, [FINALS[0], [82, None, "unfinished", 83], [None] * 4])
    notes = " ".join(summary["notes"])
    assert "6 trials to go (FilterAdamW, K: 2; FilterAdamW, 2K: 4)" in notes
    assert (
        "Not equal: some had 4 trials, others fewer (FilterAdamW, K: 2; FilterAdamW, 2K: 0)"
        in notes
    )
    assert "6 seeds to go (AdamW: 3; FilterAdamW, K: 3)" in notes
    assert len(summary["contestants"][1]["expected_best"]) == 2
    assert tables.markdown(summary)
    assert [name for name, _ in figures.figures(summary)] == ["best-of-k", "rates"]


def test_the_time_to_where_the_reference_ends(tmp_path):
    sweep = sweep_with(tmp_path, TEXT, [[2.0, 3, 3, 3]] * 3)
    best = [c.chosen.config for c in contestants_of(sweep, read_runs([tmp_path])[0]) if c.chosen]
    halves = {  # the value after 20 of 40 steps, and at the end
        0: [(2.5, 1.9), (2.5, 2.0), (2.5, 2.1)],  # ends at 2.0 on average
        1: [(1.9, 1.8), (2.0, 1.8), (2.5, 1.9)],
        2: [(2.5, 1.9), (2.6, 2.4), "diverged"],
    }
    for i, values in halves.items():
        for seed, value in zip(SEEDS, values, strict=True):
            config = dataclasses.replace(best[i], seed=seed)
            if isinstance(value, str):
                run(tmp_path, config, value)
            else:
                run(tmp_path, config, value[1], at_half=value[0])
    (only,) = summarize(sweep, read_runs([tmp_path])[0])["comparisons"]
    assert only["target"] == pytest.approx(2.0)
    reference, soon, late = only["reached"]
    assert (reference["reached"], reference["n"]) == (2, 3)
    assert (soon["length"], soon["ratio"], soon["reached"]) == (20, 0.5, 3)
    assert (soon["seconds"], soon["seconds_ratio"]) == (2.0, 0.5)
    assert (late["length"], late["ratio"], late["reached"], late["n"]) == (None, None, 1, 3)
    assert soon["time_ratio"] is None
    timed = [
        {"file": name, "optimizer": c.optimizer, "settings": dict(c.settings), "ms": ms}
        for name, ms in (("other", [1.0] * 3), ("ours", [4.0, 5.0, 9.0]))
        for c in sweep.configs[:2]
    ]
    timed[-1]["ms"] = [6.0, 60.0, 6.0]  # FilterAdamW, K
    found = summarize(sweep, read_runs([tmp_path])[0], step_times=timed)
    assert [c["step_ms"] for c in found["contestants"]] == [5, 6, None]
    _, soon, late = found["comparisons"][0]["reached"]
    assert soon["time_ratio"] == pytest.approx(0.5 * 6 / 5)
    assert late["time_ratio"] is None
    rows = {row[0]: row[1:] for row in tables.speed(found).rows}
    assert rows["FilterAdamW, K"] == ("20 steps, 0.50×, time 0.60×", "6 ms")
    assert rows["AdamW"] == ("reference", "5 ms")
    assert rows["FilterAdamW, 2K"] == ("not reached (1 of 3)", "–")


def test_text_is_compared_by_the_test_loss_if_it_was_measured(tmp_path):
    summary = summary_of(tmp_path / "a", TEXT, [[2.0, 3, 3, 3]] * 3, [[2.0, 2.1, 2.2]] * 3)
    assert summary["metric"]["key"] == "test_loss"
    assert summary["contestants"][0]["final"]["mean"] == pytest.approx(3.1)
    for path in (tmp_path / "a").glob("*/metrics.jsonl"):
        path.write_text(path.read_text().replace("test_loss", "another"))
    sweep = sweep_from_table("ours", TEXT)
    again = summarize(sweep, read_runs([tmp_path / "a"])[0])
    assert again["metric"]["key"] == "val_loss"
    assert again["contestants"][0]["final"]["mean"] == pytest.approx(2.1)
    assert again["margin"] == 0.02
    assert not any("test_tokens" in note for note in summary["notes"])
    assert any("test_tokens" in note for note in again["notes"]), "it chose, and is the result"


def test_the_edge_of_what_was_tried(tmp_path):
    sweep = with_trials(sweep_from_table("ours", DIGITS))
    rates = [config.lr for config in sweep.trials[0]]
    at = rates.index(max(rates))
    values = [90 if i == at else 50 for i in range(TRIALS)]
    summary = summary_of(tmp_path, DIGITS, [values, FINALS[1], FINALS[2]])
    assert "largest lr" in summary["contestants"][0]["chosen"]["edges"]
    assert tables.chosen_rate(summary["contestants"][0]).endswith("↑")
    assert any("AdamW (largest lr)" in note for note in summary["notes"])


def test_runs_of_another_plan_are_counted(tmp_path):
    run(tmp_path, made.config("lion", epochs=2), 70)
    summary = summary_of(tmp_path, DIGITS, FINALS, AFTER)
    assert (summary["runs"], summary["other_runs"]) == (21, 1)
    assert "Left out: 1 run of another plan." in summary["notes"]


def test_references_by_name_or_label(tmp_path):
    names = ["FilterAdamW, 2K", "adamw"]
    summary = summary_of(tmp_path, DIGITS, FINALS, AFTER, references=names)
    assert [c["reference"] for c in summary["comparisons"]] == ["FilterAdamW, 2K", "AdamW"]
    with pytest.raises(UserError, match="did you mean adamw"):
        summarize(sweep_from_table("ours", DIGITS), [], ["adamv"])


def test_runs_on_a_users_text_are_found_without_it(tmp_path):
    """A plan is made where the text is not: only then may its fingerprint be any."""
    real = {**TEXT, "data": "real"}
    sweep = sweep_from_table("ours", real)
    for config in sweep.configs:
        options = {**config.options, "fingerprint": "abc"}
        run(tmp_path, dataclasses.replace(config, options=options), 2.0)
    records = read_runs([tmp_path])[0]
    assert summarize(sweep, records)["runs"] == 12
    other = sweep_from_table("ours", {**real, "set": {**real["set"], "corpus": "books.txt"}})
    assert summarize(other, records)["runs"] == 0
    for config in sweep.configs[:1]:
        options = {**config.options, "fingerprint": "def"}
        run(tmp_path, dataclasses.replace(config, options=options), 2.0)
    with pytest.raises(UserError, match="the runs are of 2 sets of data"):
        summarize(sweep, read_runs([tmp_path])[0])


def test_halves_of_a_sweep_on_two_texts_are_not_one_comparison(tmp_path):
    sweep = sweep_from_table("ours", {**TEXT, "data": "real"})
    for number, config in enumerate(sweep.configs):
        options = {**config.options, "fingerprint": "abc" if number % 2 else "def"}
        run(tmp_path, dataclasses.replace(config, options=options), 2.0)
    with pytest.raises(UserError, match="the runs are of 2 sets of data"):
        summarize(sweep, read_runs([tmp_path])[0])


def test_a_text_is_known_by_the_last_part_of_its_path(tmp_path):
    plans = [
        {**TEXT, "data": "real", "set": {**TEXT["set"], "corpus": path}}
        for path in ("/somewhere/books.txt", "books.txt", "other.txt")
    ]
    theirs, ours, others = (sweep_from_table("ours", plan) for plan in plans)
    for config in theirs.configs:
        run(tmp_path, config, 2.0)
    records = read_runs([tmp_path])[0]
    assert summarize(ours, records)["runs"] == 12
    assert summarize(others, records)["runs"] == 0


def test_two_tasks_are_not_one_comparison():
    cells = [{"optimizer": "sgd"}, {"optimizer": "sgd", "task": "cifar10"}]
    sweep = sweep_from_table("ours", {**DIGITS, "cells": cells})
    with pytest.raises(UserError, match="ours is of several tasks"):
        summarize(sweep, [])


def test_a_diverged_seed_never_reaches_the_target(tmp_path):
    """However good it was before."""
    sweep = sweep_with(tmp_path, DIGITS, FINALS, [AFTER[0]])
    best = contestants_of(sweep, read_runs([tmp_path])[0])[1].chosen
    assert best is not None
    for seed in SEEDS:
        config = dataclasses.replace(best.config, seed=seed)
        extra = {"validation_accuracy": 99.0}
        made.run(tmp_path, config, [99.0], status="diverged", extra=extra)
    (comparison,) = summarize(sweep, read_runs([tmp_path])[0])["comparisons"]
    row = next(r for r in comparison["reached"] if r["contestant"] == "FilterAdamW, K")
    assert (row["n"], row["reached"], row["length"]) == (3, 0, None)


def test_trials_at_the_same_settings_are_compared(tmp_path):
    """K's trials are at AdamW's settings: two better, one worse, and one diverged for both."""
    trials = [[80, 70, "diverged", 60], [82, 69, "diverged", 70], ["diverged", 71, 50, 60]]
    sweep = sweep_with(tmp_path, DIGITS, trials)
    summary = summarize(sweep, read_runs([tmp_path])[0])
    (comparison,) = summary["comparisons"]
    found = {row["contestant"]: row["same_settings"] for row in comparison["rows"]}
    assert found == {
        "FilterAdamW, K": {"better": 2, "worse": 1, "equal": 0, "median": 2.0, "p": 1.0},
        "FilterAdamW, 2K": {"better": 2, "worse": 1, "equal": 1, "median": 0.5, "p": 1.0},
    }
    said = {(label, rival): words for label, rival, words in tables.same_settings(summary).rows}
    assert said["FilterAdamW, K", "AdamW"].startswith("2 of 3, ")
    assert said["FilterAdamW, 2K", "AdamW"].startswith("2 of 3, 1 equal, ")


def test_trials_at_other_settings_are_not(tmp_path):
    cells = [{"optimizer": "adamw"}, {"optimizer": "lion"}]
    sweep = sweep_with(tmp_path, {**DIGITS, "cells": cells}, FINALS[:2])
    (comparison,) = summarize(sweep, read_runs([tmp_path])[0])["comparisons"]
    assert [row["same_settings"] for row in comparison["rows"]] == [None]


def test_two_forms_as_references_have_two_figures(tmp_path):
    references = ["FilterAdamW, K", "FilterAdamW, 2K"]
    summary = summary_of(tmp_path, DIGITS, FINALS, AFTER, references=references)
    names = [name for name, _ in figures.figures(summary) if name.startswith("differences")]
    assert len({*names}) == 2


def test_step_times_are_of_the_same_batch(tmp_path):
    cells = [{"optimizer": "adamw", "batch": batch} for batch in (32, 512)]
    sweep = sweep_with(tmp_path, {**DIGITS, "cells": cells}, FINALS[:2])
    rows = [
        {"file": "ours", "optimizer": "adamw", "batch": config.batch, "ms": [config.batch / 32],
         "settings": json.loads(json.dumps(dict(config.settings)))}
        for config in sweep.configs[:2]
    ]  # fmt: skip
    found = summarize(sweep, read_runs([tmp_path])[0], step_times=rows)
    assert [c["step_ms"] for c in found["contestants"]] == [1.0, 16.0]


def test_damaged_and_unprintable_places_lose_no_result(tmp_path):
    sweep = sweep_with(tmp_path, DIGITS, FINALS, AFTER)
    for file in tmp_path.glob("*/env.json"):
        made.write(file, [{"commit": "abc", "earlier": None}])
    odd = dataclasses.replace(sweep, name="ours\udcff")
    found = summarize(odd, read_runs([tmp_path])[0], command="sgdf evidence ours\udcff.toml")
    json.dumps(found, ensure_ascii=False).encode()


def test_a_grid_has_no_trials():
    grid = {"task": "digits", "seeds": [0], "cells": CELLS}
    with pytest.raises(UserError, match="ours is a grid without trials: sgdf report shows it"):
        with_trials(sweep_from_table("ours", grid))


# --- tables, figures, the command -----------------------------------------------------------------


def test_the_tables_fit_a_terminal_and_the_page_has_the_same_cells(tmp_path):
    summary = summary_of(tmp_path, DIGITS, FINALS, AFTER)
    output = io.StringIO()
    tables.show(Console(file=output, width=80), summary)
    assert max(map(len, output.getvalue().splitlines())) <= 80
    page = tables.markdown(summary)
    assert "| AdamW | 82.00 ± 1.00 (3) | reference |  |  |" in page
    assert "| FilterAdamW, K | 85.33 ± 0.58 (3) | +3.33 [+1.90, +4.77] | 0.02 | " in page
    for table in tables.tables(summary):
        for cell in (cell for row in table.rows for cell in row):
            assert escaped(cell) in page


def test_the_figures_have_the_numbers_of_the_summary(tmp_path):
    summary = summary_of(tmp_path, DIGITS, [FINALS[0], [82, "diverged", 70, 83], FINALS[2]], AFTER)
    drawn = dict(figures.figures(summary))
    assert list(drawn) == ["differences-adamw", "best-of-k", "rates"]
    (axes,) = drawn["differences-adamw"].axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["FilterAdamW, 2K", "FilterAdamW, K"], "the best one is at the top"
    rows = {row["contestant"]: row for row in summary["comparisons"][0]["rows"]}
    means = [line.get_xdata()[0] for line in axes.get_lines() if line.get_marker() == "o"]
    assert means == pytest.approx([rows[label]["mean"] for label in labels])
    (axes,) = drawn["best-of-k"].axes
    assert len(axes.get_lines()) == 3
    curve = axes.get_lines()[0].get_ydata()
    assert list(curve) == pytest.approx(summary["contestants"][0]["expected_best"])
    panels = [axes for axes in drawn["rates"].axes if axes.get_visible()]
    assert len(panels) == 3
    crosses = [line for axes in panels for line in axes.get_lines() if line.get_marker() == "x"]
    assert len(crosses) == 1


def test_of_many_contestants_those_with_the_filter_have_a_panel(tmp_path):
    names = ["adamw", "nadamw", "lion", "adabelief", "soap"]
    cells = [*({"optimizer": name} for name in names), *CELLS[1:]]
    values = [[80.0 + i, 79, 78, 77] for i in range(len(cells))]
    summary = summary_of(tmp_path, {**DIGITS, "cells": cells}, values)
    left, right = dict(figures.figures(summary))["best-of-k"].axes
    assert [len(axes.get_lines()) for axes in (left, right)] == [5, 2 + 2], "references in both"
    for axes in (left, right):
        heights = sorted(text.xyann[1] for text in axes.texts)
        assert len({round(height, 6) for height in heights}) == len(axes.get_lines())


TOML = """
title = "Ours"
task = "digits"
epochs = 2
trials = 4
seeds = [1, 2, 3]
[set]
validation = 200
[[cells]]
optimizer = "adamw"
[[cells]]
optimizer = "filter-adamw"
gain_scale = 1.0
[[cells]]
optimizer = "filter-adamw"
gain_scale = 2.0
"""


def test_the_command_reads_a_packed_file_and_writes_beside_it(tmp_path, capsys):
    sweep = sweep_with(tmp_path / "runs", DIGITS, FINALS, AFTER)
    results = tmp_path / "results"
    pack((tmp_path / "runs").iterdir(), results / "runs.jsonl")
    (tmp_path / "ours.toml").write_text(TOML)
    words = ["evidence", str(tmp_path / "ours.toml"), "--out", str(results)]
    assert main(words) == 0
    assert "Ours: 3 seeds of the best of 4 trials" in capsys.readouterr().out
    written = json.loads((results / "summary.json").read_text())
    expected = summarize(sweep, read_runs([tmp_path / "runs"])[0])
    assert {**written, "command": ""} == json.loads(json.dumps(expected))
    assert written["command"].startswith("sgdf evidence")
    assert sorted(path.name for path in results.glob("*.svg")) == [
        "best-of-k.svg", "differences-adamw.svg", "rates.svg",
    ]  # fmt: skip
    assert "prefers-color-scheme: dark" in (results / "rates.svg").read_text()
    assert main([*words, "--markdown"]) == 0
    said = capsys.readouterr()
    before, searched = said.out.split(tables.markdown(written) + "\n")
    assert (before, searched) == ("", "".join(f"- {x}\n" for x in lines_of_search(sweep)) + "\n")
    assert searched
    assert "summary.json" in said.err


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": [3]}', '{"rows": [{"file": "a"}]}'])
def test_a_wrong_file_of_step_times_is_one_sentence(tmp_path, capsys, text):
    (tmp_path / "ours.toml").write_text(TOML)
    (tmp_path / "times.json").write_text(text)
    run(tmp_path, sweep_from_table("ours", DIGITS).configs[0], 70)
    words = ["evidence", str(tmp_path / "ours.toml"), "--out", str(tmp_path)]
    assert main([*words, "--step-times", str(tmp_path / "times.json")]) == 1
    assert "times.json is not of benchmarks/step_times.py" in capsys.readouterr().err


def test_no_runs_is_one_sentence(tmp_path, capsys):
    (tmp_path / "ours.toml").write_text(TOML)
    assert main(["evidence", str(tmp_path / "ours.toml"), "--out", str(tmp_path)]) == 1
    assert f"there are no runs of ours in {tmp_path}" in capsys.readouterr().err

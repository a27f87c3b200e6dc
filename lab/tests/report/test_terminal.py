import dataclasses
import re
from pathlib import Path

from report import made
from report.made import in_terminal
from sgdf_lab.reports import page, wording


def test_runs_that_did_not_finish_are_shown_as_such(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf", 0, epochs=20), [50.0] * 20)
    made.run(tmp_path, made.config("sgdf", 1, epochs=20), [50.0] * 2, status="diverged")
    made.run(tmp_path, made.config("sgdf", 2, epochs=20), [50.0] * 6, status="diverged")
    made.run(tmp_path, made.config("sgdf", 3, epochs=20), [50.0] * 9, status=None)
    made.run(tmp_path, made.config("sgdf", 4, epochs=20), [50.0], status="failed")
    planned = [made.config("sgdf", 5, epochs=20), made.config("adam", 0, epochs=20)]
    comparison = made.compare(tmp_path, planned=planned)
    sgdf, adam = comparison.rows
    assert wording.unfinished_runs(sgdf.cell) == (
        "2 diverged in epoch 3, 7; 1 failed; 1 unfinished at epoch 9 of 20; 1 missing (seed 5)"
    )
    assert wording.unfinished_runs(adam.cell) == "missing"
    assert sgdf.final is not None
    assert sgdf.final.n == 1
    for shown in (in_terminal(comparison, 300), page.table(comparison)):
        assert "2 diverged in epoch 3, 7" in shown


def test_no_number_is_broken_in_a_narrow_terminal(tmp_path: Path) -> None:
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60.0 + seed])
        made.run(tmp_path, made.config("adam", seed), [50, 55, 50.0 + 1.1 * seed])
    comparison = made.compare(tmp_path)
    shown = in_terminal(comparison, 60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "−9.95 [−10.59,\xa0−9.31]" in shown
    assert "60.50\xa0±\xa00.71 (2)" in shown


def test_names_are_text_in_both_renderings(tmp_path: Path) -> None:
    evil = "[red]<script>alert(1)</script>"
    made.run(tmp_path, made.hostile(evil, lr="fast"), [1, 2, 3])
    comparison = made.compare(tmp_path)
    assert evil in in_terminal(comparison, 120)
    assert "<script" not in page.table(comparison)
    assert "&lt;script&gt;alert(1)" in page.table(comparison)


def test_titles_that_are_broken_do_not_cost_a_number(tmp_path: Path) -> None:
    """In 80 columns, with a second metric and no interval."""
    for optimizer in ("sgdf", "adamw"):
        config = made.config(optimizer, task="text", steps=100, eval_every=50)
        values = {"val_loss": [2.0, 1.5], "bits_per_byte": [3.0, 2.2]}
        made.run(tmp_path, config, [2.0, 1.5], extra=values)
    shown = in_terminal(made.compare(tmp_path), 80)
    assert re.search(r"n = 1: no interval +0.04 s", shown)
    assert re.search(r"reference +0.04 s", shown)


def test_long_labels_are_wrapped_and_leave_room_for_numbers(tmp_path: Path) -> None:
    """In 80 columns; in a wide terminal the table stays one, with whole labels."""
    name = "a.package." + "OptimizerWithALongName" * 3
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60.0 + seed])
        made.run(
            tmp_path,
            dataclasses.replace(made.hostile(name, lr=0.1), seed=seed),
            [50, 55, 50.0 + 1.1 * seed],
        )
    comparison = made.compare(tmp_path)
    shown = in_terminal(comparison, 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert re.search(r"60.50\xa0±\xa00.71 \(2\) +60.50\xa0±\xa00.71 \(2\)", shown), "side by side"
    assert name in in_terminal(comparison, 300)

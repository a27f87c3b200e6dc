import dataclasses
import re
from pathlib import Path

import pytest

from report import made
from report.made import in_terminal
from sgdf_lab.reports import page, wording
from sgdf_lab.runs.results import published_value


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.667, "0.67 s"),
        (9.96, "10 s"),
        (99, "99 s"),
        (150, "2.5 min"),
        (5999, "100 min"),
        (7e5, "194 h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert wording.duration(seconds) == words


def test_nothing_finished(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [50], status=None)
    comparison = made.compare(tmp_path)
    assert comparison.target is None
    assert wording.summary(comparison) == "No run has finished yet."
    assert "unfinished at epoch 1 of 3" in in_terminal(comparison, 80)


def test_further_metrics_have_columns(tmp_path: Path) -> None:
    config = made.config("sgdf", task="imagenet", epochs=2)
    made.run(tmp_path, config, [60, 70], extra={"test_top5_accuracy": [80.0, 89.5]})
    comparison = made.compare(tmp_path)
    titles, _ = wording.cells_of(comparison, comparison.rows)
    assert any("top-5" in title for title in titles)
    assert "89.50 (1)" in page.table(comparison)


def test_the_published_top5_accuracy_is_beside_the_published_top1(tmp_path: Path) -> None:
    config = made.config("sgdf", task="imagenet", model="resnet18")
    values = made.curve(70, config.epochs)
    made.run(tmp_path, config, values, extra={"test_top5_accuracy": made.curve(89, config.epochs)})
    comparison = made.compare(tmp_path)
    titles, ((_, *cells),) = wording.cells_of(comparison, comparison.rows)
    shown = dict(zip(titles, cells, strict=True))
    assert shown["published best"] == "70.55"
    assert shown["published top-5 test accuracy"] == "89.76"
    assert "89.76" in page.table(comparison)


def test_another_optimizer_or_other_settings_have_no_published_top5_accuracy() -> None:
    top5 = made.config(task="imagenet").task_definition.metrics[1]
    for config in (
        made.config("adabelief", task="imagenet"),
        made.config("sgdf", task="imagenet", lr=0.123),
        made.config("sgdf", task="imagenet", epochs=3),
        made.config("sgdf", task="imagenet", model="resnet50"),
    ):
        assert published_value(config, top5) is None
    assert published_value(made.config("sgd", task="imagenet"), top5).mean == 89.40
    voc = made.config("sgdf", task="voc")
    first, second, _ = voc.task_definition.metrics
    assert published_value(voc, first) == published_value(voc)
    assert published_value(voc, second) is None


def test_the_note_on_intervals_names_the_metric(tmp_path: Path) -> None:
    for optimizer in ("sgdf", "sgd"):
        for seed in (0, 1):
            config = made.config(optimizer, seed, task="voc", epochs=2)
            values = [60.0, 70.0 + seed]
            made.run(tmp_path, config, values, extra={"test_ap50": values})
    assert any(
        "differences in final mAP at IoU 0.5 " in n for n in wording.notes(made.compare(tmp_path))
    )


def gan(out: Path, optimizer: str, seed: int, fids: list[float | None]) -> None:
    config = made.config(optimizer, seed, task="wgan-gp", epochs=len(fids))
    extra = {"fid": fids, "train_loss": -1.0}
    made.run(out, config, [50] * len(fids), extra=extra)


def test_a_lower_fid_is_better_and_is_not_measured_in_every_epoch(
    tmp_path: Path,
) -> None:
    for seed in (0, 1):
        gan(tmp_path, "sgdf", seed, [None, 80.0, None, 90.0 + seed])
        gan(tmp_path, "adam", seed, [None, 95.0, None, 78.0 + 2 * seed])
        gan(tmp_path, "rmsprop", seed, [None, 95.0, None, 120.0 + 1.1 * seed])
    comparison = made.compare(tmp_path)
    by_label = {row.label: row for row in comparison.rows}
    assert by_label["sgdf"].best.mean == 80
    assert by_label["sgdf"].final.mean == 90.5
    assert comparison.target == 121  # which the worst comes to
    assert wording.time_to_target(by_label["adam"]).startswith("2 epochs")
    summary = wording.summary(comparison)
    assert {label: row.verdict for label, row in by_label.items()} == {
        "sgdf": "", "adam": "", "rmsprop": "behind"
    }  # fmt: skip
    assert "by 30.05 in FID, 95 % interval" in summary
    assert "lower is better" in summary
    assert summary.endswith("sgdf ends at FID 90.50\xa0±\xa00.71 (mean of 2 runs).")
    assert "points" not in summary
    assert "FID, lower is better, best over the epochs" in wording.notes(comparison)[0]
    shown = in_terminal(comparison, 300)
    assert "to 121" in shown
    assert "validation" not in shown
    assert "%" not in shown.partition("Intervals")[0].replace("95 %", "")


# --- in a terminal --------------------------------------------------------------------------------


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

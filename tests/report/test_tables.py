import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from report import made
from sgdf.report import records, tables
from sgdf.report.tables import Comparison


def compare(out: Path, **how: object) -> Comparison:
    (comparison,) = tables.build(records.read([out])[0], **how)
    return comparison


def in_terminal(comparison: Comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(tables.as_rich(comparison, width))
    return console.file.getvalue()


def test_means_deviations_and_times(tmp_path: Path) -> None:
    for seed, final in enumerate([60.0, 61.0, 64.0]):
        made.run(tmp_path, made.config(seed=seed), [50, 65 + seed, final], seconds=1.0 + seed)
    (row,) = compare(tmp_path).rows
    assert row.final is not None
    assert row.best is not None
    # mean 185/3; deviations -5/3, -2/3, 7/3: sum of squares 78/9, over n - 1 = 2
    assert row.final.mean == pytest.approx(185 / 3)
    assert row.final.std == pytest.approx(math.sqrt(78 / 9 / 2))
    assert (row.best.mean, row.best.std, row.best.n) == (66, 1, 3)
    assert row.seconds_per_epoch == 2.0
    assert tables.counted(row.final) == "61.67\xa0±\xa02.08 (3)"


def test_the_interval_is_students_over_paired_seeds() -> None:
    # differences 1, 2, 6: mean 3, std sqrt(7); t(0.975, 2) = 4.302653
    difference = tables.paired_interval([1.0, 2.0, 6.0])
    assert difference.mean == pytest.approx(3)
    assert difference.half_width == pytest.approx(4.302653 * math.sqrt(7 / 3), rel=1e-6)
    # two pairs: t(0.975, 1) = 12.70620; std of 0 and 1 is sqrt(1/2)
    assert tables.paired_interval([0.0, 1.0]).half_width == pytest.approx(12.70620 / 2, rel=1e-6)


def test_equal_differences_have_no_interval() -> None:
    assert tables.paired_words(tables.paired_interval([0.3, 0.1 + 0.2])) == (
        "n = 2, all alike: no interval"
    )


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
    assert tables.duration(seconds) == words


def test_only_common_finished_seeds_are_paired(tmp_path: Path) -> None:
    for seed, final in ((0, 60.0), (1, 62.0), (2, 99.0)):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, final])
    for seed, final in ((0, 61.0), (1, 64.0), (3, 10.0)):
        made.run(tmp_path, made.config("adam", seed), [50, 55, final])
    made.run(tmp_path, made.config("lion", 2), [50, 55, 60])
    made.run(tmp_path, made.config("sgd", 7), [50, 55, 60])
    comparison = compare(tmp_path)
    by_label = {row.label: row for row in comparison.rows}
    assert comparison.reference == "sgdf"
    adam = by_label["adam"].paired
    assert adam is not None
    assert (adam.n, adam.mean) == (2, pytest.approx(1.5))
    assert adam.half_width == pytest.approx(12.70620 / 2, rel=1e-6)
    assert tables.against_reference(by_label["lion"]) == "n = 1: no interval"
    assert tables.against_reference(by_label["sgd"]) == "no common seed"
    assert tables.against_reference(by_label["sgdf"]) == "reference"


def test_a_difference_is_said_only_with_its_interval(tmp_path: Path) -> None:
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60.0 + seed])
        made.run(tmp_path, made.config("adam", seed), [50, 55, 50.0 + 1.1 * seed])
    made.run(tmp_path, made.config("lion", 0), [50, 55, 90])
    said = tables.summary(compare(tmp_path))
    # differences -10 and -9.9: mean -9.95, half-width 12.70620 * 0.05
    assert "−9.95 [−10.59,\xa0−9.31]" in said
    assert "below zero" in said
    assert "lion" not in said


def test_of_several_published_cells_the_one_with_the_most_seeds_is_the_reference(
    tmp_path: Path,
) -> None:
    made.run(tmp_path, made.config("sgdf", precision="bf16"), [50, 55, 60])
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60])
    assert compare(tmp_path).reference == "sgdf, tf32"


def test_without_sgdf_the_first_cell_is_the_reference(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgd"), [50, 55, 60])
    made.run(tmp_path, made.config("adam"), [50, 55, 60])
    made.run(tmp_path, made.config("sgdf"), [50], status=None)
    assert compare(tmp_path).reference == "adam"


def test_published_value_and_difference(tmp_path: Path) -> None:
    accuracies = [*made.curve(91.0, 199), 91.5]
    made.run(tmp_path, made.config("sgdf", task="cifar10"), accuracies)
    made.run(tmp_path, made.config("sgdf", task="cifar10", lr=0.3), accuracies)
    other, published = compare(tmp_path).rows
    assert published.difference == pytest.approx(91.5 - 91.76)
    assert (other.published, other.difference) == (None, None)
    assert any("divides by n and not" in note for note in compare(tmp_path).notes)


def test_the_target_is_one_that_all_reach(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [61, 62, 80], seconds=3.0)
    made.run(tmp_path, made.config("adam", 0), [50, 61.6, 61.9], seconds=3.0)
    made.run(tmp_path, made.config("adam", 1), [50, 61.7, 61.3], seconds=1.0)
    comparison = compare(tmp_path)
    assert comparison.target == 61.5  # the mean 61.6, down to a half
    sgdf, adam = (row.arrival for row in comparison.rows)
    assert sgdf == tables.Arrival(1, 1, epochs=2, seconds=6.0)
    assert adam == tables.Arrival(2, 2, epochs=2, seconds=4.0)
    sgdf, adam = (row.arrival for row in compare(tmp_path, target=61.65).rows)
    assert adam == tables.Arrival(2, 2, epochs=2.5, seconds=5.5)
    assert compare(tmp_path, target=70.0).rows[1].arrival == tables.Arrival(0, 2)
    assert "not reached" in in_terminal(compare(tmp_path, target=70.0), 120)


def test_runs_that_did_not_finish_are_shown_as_such(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf", 0, epochs=20), [50.0] * 20)
    made.run(tmp_path, made.config("sgdf", 1, epochs=20), [50.0] * 2, status="diverged")
    made.run(tmp_path, made.config("sgdf", 2, epochs=20), [50.0] * 6, status="diverged")
    made.run(tmp_path, made.config("sgdf", 3, epochs=20), [50.0] * 9, status=None)
    made.run(tmp_path, made.config("sgdf", 4, epochs=20), [50.0], status="failed")
    planned = [made.config("sgdf", 5, epochs=20), made.config("adam", 0, epochs=20)]
    comparison = compare(tmp_path, planned=planned)
    sgdf, adam = comparison.rows
    assert sgdf.runs == (
        "2 diverged in epoch 3, 7; 1 failed; 1 unfinished at epoch 9 of 20; 1 missing (seed 5)"
    )
    assert adam.runs == "missing"
    assert sgdf.final is not None
    assert sgdf.final.n == 1
    for shown in (in_terminal(comparison, 300), tables.as_html(comparison)):
        assert "2 diverged in epoch 3, 7" in shown


def test_nothing_finished(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [50], status=None)
    comparison = compare(tmp_path)
    assert comparison.target is None
    assert tables.summary(comparison) == "No run has finished yet."
    assert "unfinished at epoch 1 of 3" in in_terminal(comparison, 80)


def test_the_choice_is_by_validation(tmp_path: Path) -> None:
    for lr, validation, final in ((0.1, 70.0, 60.0), (0.3, 80.0, 50.0)):
        for seed in (0, 1):
            held_out = made.config("sgdf", seed, lr=lr, validation=100)
            made.run(tmp_path, held_out, [1, 2, final], extra={"validation_accuracy": validation})
    made.run(
        tmp_path, made.config("sgd", validation=100), [1, 2, 3], extra={"validation_accuracy": 9.0}
    )
    comparison = compare(tmp_path)
    assert [row.is_chosen for row in comparison.rows] == [False, True, False]
    assert comparison.reference == "sgdf, lr 0.3"  # though the other does better in the test
    assert "80.00\xa0±\xa00.00 (2)" in tables.as_html(comparison)
    assert any("the choice (✓) was by it" in note for note in comparison.notes)
    assert "sgdf, lr 0.1" not in tables.summary(comparison)


def test_the_target_is_one_that_the_chosen_reach(tmp_path: Path) -> None:
    for lr, final in ((0.1, 60.3), (10.0, 2.0)):
        config = made.config("sgdf", lr=lr, validation=100)
        made.run(tmp_path, config, [1, 2, final], extra={"validation_accuracy": final})
    comparison = compare(tmp_path)
    assert comparison.target == 60
    assert [tables.arrival_words(row) for row in comparison.rows] == [
        "3 epochs, 6 s",
        "not reached",
    ]


def test_survivors_are_not_chosen(tmp_path: Path) -> None:
    for lr, validation, lost in ((0.1, 70.0, False), (0.3, 80.0, True)):
        both = [made.config("sgdf", seed, lr=lr, validation=100) for seed in (0, 1)]
        made.run(tmp_path, both[0], [1, 2, 3], extra={"validation_accuracy": validation})
        if lost:
            made.run(tmp_path, both[1], [1], status="diverged")
    assert [row.is_chosen for row in compare(tmp_path).rows] == [True, False]


def test_no_number_is_broken_in_a_narrow_terminal(tmp_path: Path) -> None:
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60.0 + seed])
        made.run(tmp_path, made.config("adam", seed), [50, 55, 50.0 + 1.1 * seed])
    comparison = compare(tmp_path)
    parts = list(tables.fitting(comparison.rows, tables.columns(comparison), 60))
    titles = [column.title for part in parts for column in part]
    assert titles == [column.title for column in tables.columns(comparison)]
    assert len(parts) == 2
    shown = in_terminal(comparison, 60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "−9.95 [−10.59,\xa0−9.31]" in shown
    assert "60.50\xa0±\xa00.71 (2)" in shown


def test_names_are_text_in_both_renderings(tmp_path: Path) -> None:
    evil = "[red]<script>alert(1)</script>"
    made.run(tmp_path, made.hostile(evil, lr="fast"), [1, 2, 3])
    comparison = compare(tmp_path)
    assert evil in in_terminal(comparison, 120)
    assert "<script" not in tables.as_html(comparison)
    assert "&lt;script&gt;alert(1)" in tables.as_html(comparison)


# --- other tasks -------------------------------------------------------------------------------


def gan(out: Path, optimizer: str, seed: int, fids: list[float | None]) -> None:
    config = made.config(optimizer, seed, task="wgan-gp", epochs=len(fids))
    extra = {"fid": fids, "train_loss": -1.0}
    made.run(out, config, [50] * len(fids), extra=extra)


def test_a_distance_is_better_if_it_is_lower_and_not_measured_in_every_epoch(
    tmp_path: Path,
) -> None:
    for seed in (0, 1):
        gan(tmp_path, "sgdf", seed, [None, 80.0, None, 90.0 + seed])
        gan(tmp_path, "adam", seed, [None, 95.0, None, 78.0 + 2 * seed])
        gan(tmp_path, "rmsprop", seed, [None, 95.0, None, 120.0 + 3 * seed])
    comparison = compare(tmp_path)
    by_label = {row.label: row for row in comparison.rows}
    assert by_label["sgdf"].best.mean == 80
    assert by_label["sgdf"].final.mean == 90.5
    assert comparison.target == 121.5  # which the worst comes to
    assert tables.arrival_words(by_label["adam"]).startswith("2 epochs")
    said = tables.summary(comparison)
    assert said.startswith("sgdf ends at FID 90.50")
    assert "The lowest: adam differs" in said
    assert "points" not in said
    assert "FID, lower is better, best over the epochs" in comparison.notes[0]
    shown = in_terminal(comparison, 300)
    assert "to 121.5" in shown
    assert "validation" not in shown
    assert "%" not in shown.partition("Intervals")[0].replace("95 %", "")


def test_further_metrics_have_columns(tmp_path: Path) -> None:
    config = made.config("sgdf", task="imagenet", epochs=2)
    made.run(tmp_path, config, [60, 70], extra={"test_top5_accuracy": [80.0, 89.5]})
    comparison = compare(tmp_path)
    titles = [column.title for column in tables.columns(comparison)]
    assert any("top-5" in title for title in titles)
    assert "89.50 (1)" in tables.as_html(comparison)


def test_the_note_on_intervals_names_the_metric(tmp_path: Path) -> None:
    for optimizer in ("sgdf", "sgd"):
        for seed in (0, 1):
            config = made.config(optimizer, seed, task="voc", epochs=2)
            values = [60.0, 70.0 + seed]
            made.run(tmp_path, config, values, extra={"test_ap50": values})
    assert any("differences in final mAP at IoU 0.5 " in n for n in compare(tmp_path).notes)


def test_a_finished_run_needs_its_metric_at_the_end(tmp_path: Path) -> None:
    gan(tmp_path, "sgdf", 0, [80.0, None])
    found, complaints = records.read([tmp_path])
    assert not found
    assert "has no FID at its end" in complaints[0]

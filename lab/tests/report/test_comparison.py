import math
from pathlib import Path

import pytest

from report import made
from report.made import in_terminal
from sgdf_lab.reports import page, wording
from sgdf_lab.reports.comparison import Comparison, TimeToTarget, edge_warnings
from sgdf_lab.reports.numbers import Spread


def test_means_deviations_and_times(tmp_path: Path) -> None:
    for seed, final in enumerate([60.0, 61.0, 64.0]):
        made.run(tmp_path, made.config(seed=seed), [50, 65 + seed, final], seconds=1.0 + seed)
    (row,) = made.compare(tmp_path).rows
    assert row.final is not None
    assert row.best is not None
    # mean 185/3; deviations -5/3, -2/3, 7/3: sum of squares 78/9, over n - 1 = 2
    assert row.final.mean == pytest.approx(185 / 3)
    assert row.final.std == pytest.approx(math.sqrt(78 / 9 / 2))
    assert (row.best.mean, row.best.std, row.best.n) == (66, 1, 3)
    assert row.seconds_per_unit == 2.0
    assert wording.counted(row.final) == "61.67\xa0±\xa02.08 (3)"


def test_of_several_published_cells_the_one_with_the_most_seeds_is_the_reference(
    tmp_path: Path,
) -> None:
    made.run(tmp_path, made.config("sgdf", precision="bf16"), [50, 55, 60])
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60])
    assert made.compare(tmp_path).reference == "sgdf, tf32"


def test_without_a_baseline_and_sgdf_the_first_cell_is_the_reference(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("radam"), [50, 55, 60])
    made.run(tmp_path, made.config("adam"), [50, 55, 60])
    made.run(tmp_path, made.config("sgdf"), [50], status=None)
    assert made.compare(tmp_path).reference == "adam"


def test_published_value_and_difference(tmp_path: Path) -> None:
    accuracies = [*made.curve(91.0, 199), 91.5]
    made.run(tmp_path, made.config("sgdf", task="cifar10"), accuracies)
    made.run(tmp_path, made.config("sgdf", task="cifar10", lr=0.3), accuracies)
    other, published = made.compare(tmp_path).rows
    assert published.difference == pytest.approx(91.5 - 91.76)
    assert (other.published, other.difference) == (None, None)
    assert any("divides by n, not" in note for note in wording.notes(made.compare(tmp_path)))


def test_the_target_is_one_that_all_reach(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [61, 62, 80], seconds=3.0)
    made.run(tmp_path, made.config("adam", 0), [50, 61.6, 61.9], seconds=3.0)
    made.run(tmp_path, made.config("adam", 1), [50, 61.7, 61.3], seconds=1.0)
    comparison = made.compare(tmp_path)
    assert comparison.target == 61.5  # the mean 61.6, down to a half
    sgdf, adam = (row.time_to_target for row in comparison.rows)
    assert sgdf == TimeToTarget(1, 1, length=2, seconds=6.0)
    assert adam == TimeToTarget(2, 2, length=2, seconds=4.0)
    sgdf, adam = (row.time_to_target for row in made.compare(tmp_path, target=61.65).rows)
    assert adam == TimeToTarget(2, 2, length=2.5, seconds=5.5)
    assert made.compare(tmp_path, target=70.0).rows[1].time_to_target == TimeToTarget(0, 2)
    assert "not reached" in in_terminal(made.compare(tmp_path, target=70.0), 120)


def test_the_choice_is_by_validation(tmp_path: Path) -> None:
    for lr, validation, final in ((0.1, 70.0, 60.0), (0.3, 80.0, 50.0)):
        for seed in (0, 1):
            held_out = made.config("sgdf", seed, lr=lr, validation=100)
            made.run(tmp_path, held_out, [1, 2, final], extra={"validation_accuracy": validation})
    other = made.config("radam", validation=100)
    made.run(tmp_path, other, [1, 2, 3], extra={"validation_accuracy": 9.0})
    comparison = made.compare(tmp_path)
    assert [row.is_chosen for row in comparison.rows] == [False, True, False]
    assert comparison.reference == "sgdf, lr 0.3"  # though the other does better in the test
    assert "80.00\xa0±\xa00.00 (2)" in page.table(comparison)
    assert any("✓ marks the setting" in note for note in wording.notes(comparison))
    assert "sgdf, lr 0.1" not in wording.summary(comparison)


def test_the_target_is_one_that_the_chosen_reach(tmp_path: Path) -> None:
    for lr, final in ((0.1, 60.3), (10.0, 2.0)):
        config = made.config("sgdf", lr=lr, validation=100)
        made.run(tmp_path, config, [1, 2, final], extra={"validation_accuracy": final})
    comparison = made.compare(tmp_path)
    assert comparison.target == 60
    assert [wording.time_to_target(row) for row in comparison.rows] == [
        "3 epochs, 6 s",
        "not reached",
    ]


def tried_and_chosen(out: Path, seeds: dict[float, int], test: str = "test_loss") -> Comparison:
    """Runs on text, where what is held out is the task's own metric."""
    for lr, count in seeds.items():
        for seed in range(count):
            config = made.config(task="text", seed=seed, steps=100, eval_every=50, lr=lr)
            loss = [2.0, 1.0 + lr * (1 + seed)]
            values = {"val_loss": loss, "bits_per_byte": 1.0, "test_loss": loss}
            lines = made.run(out, config, [0, 0], extra=values) / "metrics.jsonl"
            lines.write_text(lines.read_text().replace("test_loss", test))
    return made.compare(out)


def test_a_chosen_setting_is_compared_by_seeds_that_did_not_choose_it(tmp_path: Path) -> None:
    """A trial with one seed may be lucky, and the one that was chosen by it too."""
    comparison = tried_and_chosen(tmp_path, {0.1: 1, 0.2: 4, 0.3: 2})
    assert [row.is_chosen for row in comparison.rows] == [False, True, False]
    assert comparison.set_aside == {"sgdf, lr 0.1", "sgdf, lr 0.3"}
    chosen = comparison.rows[1]
    assert chosen.final == Spread(pytest.approx(1.7), pytest.approx(0.1 * 2**0.5), 2)
    assert sorted(chosen.cell.finished) == [2, 3]


def test_a_result_that_chose_the_settings_is_said_to_be_one(tmp_path: Path) -> None:
    """Text without a test: the validation loss chooses, and is compared."""
    rates = {0.1: 2, 0.2: 2}
    tested = tried_and_chosen(tmp_path / "a", rates)
    untested = tried_and_chosen(tmp_path / "b", rates, test="none")
    assert (tested.result.key, untested.result.key) == ("test_loss", "val_loss")
    for found, is_seen in ((tested, False), (untested, True)):
        for shown in (in_terminal(found, 900), page.section(1, found)):
            assert ("test_tokens = N" in shown) == is_seen
    assert not tried_and_chosen(tmp_path / "c", {0.1: 2}, test="none").is_seen, "no choice"


def test_who_was_chosen_by_trials_has_no_verdict_without_the_plan(tmp_path: Path) -> None:
    comparison = tried_and_chosen(tmp_path, {0.1: 1, 0.2: 4, 0.3: 4})
    assert [row.is_chosen for row in comparison.rows] == [False, True, True]
    second = comparison.rows[2].paired
    assert second is not None
    assert (second.n, second.p_verdict, second.verdict) == (3, None, "")
    assert second.p is not None
    assert "`sgdf evidence PLAN`" in wording.headline(comparison)
    assert any("by the seeds of later runs" in note for note in wording.notes(comparison))


def test_further_seeds_of_one_rate_of_a_grid_are_no_choice(tmp_path: Path) -> None:
    """All of them count, as the first did."""
    for name in ("sgdf", "sgd"):
        for lr, count in ((0.1, 3 if name == "sgd" else 1), (0.2, 1)):
            for seed in range(count):
                config = made.config(name, seed, lr=lr, validation=9)
                extra = {"validation_accuracy": 1.0}
                made.run(tmp_path, config, [1, 2, 3], extra=extra)
    assert {row.label: len(row.cell.finished) for row in made.compare(tmp_path).rows} == {
        "sgdf, lr 0.1": 1, "sgdf, lr 0.2": 1, "sgd, lr 0.1": 3, "sgd, lr 0.2": 1,
    }  # fmt: skip


def test_survivors_are_not_chosen(tmp_path: Path) -> None:
    for lr, validation, lost in ((0.1, 70.0, False), (0.3, 80.0, True)):
        both = [made.config("sgdf", seed, lr=lr, validation=100) for seed in (0, 1)]
        for config, status in zip(
            both, ("finished", "diverged" if lost else "finished"), strict=True
        ):
            extra = {"validation_accuracy": validation}
            made.run(tmp_path, config, [1, 2, 3], extra=extra, status=status)
    assert [row.is_chosen for row in made.compare(tmp_path).rows] == [True, False]


def test_of_a_loss_the_lowest_is_chosen_and_the_target_is_finer(tmp_path: Path) -> None:
    """And lengths are in steps: two evaluations of 50."""
    for lr, losses in {0.1: [2.0, 1.52], 0.2: [1.9, 1.23]}.items():
        config = made.config(task="text", steps=100, eval_every=50, lr=lr)
        names = ("val_loss", "bits_per_byte", "test_loss")
        values = dict.fromkeys(names, losses)
        made.run(tmp_path, config, losses, extra=values)
    comparison = made.compare(tmp_path)
    low, high = comparison.rows
    assert [row.is_chosen for row in (low, high)] == [False, True]
    assert comparison.target == 1.25
    assert (high.time_to_target.length, high.time_to_target.reached) == (100, 1)
    assert low.time_to_target.reached == 0
    assert high.seconds_per_unit == 2.0 / 50
    assert wording.time_to_target(high) == "100 steps, 4 s"
    assert wording.status(high.cell.records[0]) == "finished, 1.230 nats/token"
    assert wording.measured(comparison.result, high.final) == "1.2300 nats/token test loss"


# --- where the best setting lies at the edge of its grid ------------------------------------------


def grid(out: Path, finals: dict[float, float], validated: bool = True, **settings: float) -> None:
    """SGD at these learning rates; a final value of 0 means that the run diverged."""
    for lr, final in finals.items():
        config = made.config("sgd", lr=lr, validation=9 if validated else 0, **settings)
        values = [50, 55, final] if final else [50]
        extra = {"validation_accuracy": values} if validated else {}
        made.run(out, config, values, status="finished" if final else "diverged", extra=extra)


@pytest.mark.parametrize(
    ("finals", "words"),
    [
        ({0.1: 70, 0.3: 80, 1.0: 90}, "The best lr of sgd, 1, is the largest of the 3"),
        ({0.1: 90, 0.3: 80, 1.0: 70}, "The best lr of sgd, 0.1, is the smallest of the 3"),
        ({0.1: 90, 0.3: 80}, "The best lr of sgd, 0.1, is the smallest of the 2"),
        ({0.1: 70, 0.3: 90, 1.0: 80}, ""),
        ({0.1: 70, 0.3: 90, 1.0: 0}, ""),  # the next rate was tried, and diverged
        ({0.1: 90}, ""),
    ],
)
def test_the_best_rate(tmp_path: Path, finals: dict[float, float], words: str) -> None:
    grid(tmp_path, finals)
    found = edge_warnings(made.compare(tmp_path))
    assert len(found) == bool(words)
    assert all(sentence.startswith(words) for sentence in found)


def test_without_validation_two_rates_are_no_grid(tmp_path: Path) -> None:
    grid(tmp_path, {0.1: 90, 0.3: 80}, validated=False)
    assert edge_warnings(made.compare(tmp_path)) == []
    grid(tmp_path, {1.0: 70}, validated=False)
    assert len(edge_warnings(made.compare(tmp_path))) == 1


def test_each_setting_is_a_line_of_its_grid(tmp_path: Path) -> None:
    """Zero is the least weight decay there is."""
    for decay, bonus in ((0.0, 2), (0.1, 1)):
        grid(tmp_path, {0.1: 70 + bonus, 0.3: 90 + bonus, 1.0: 80 + bonus}, weight_decay=decay)
    assert edge_warnings(made.compare(tmp_path)) == []
    grid(tmp_path, {0.3: 99}, weight_decay=0.2)
    (found,) = edge_warnings(made.compare(tmp_path))
    assert found.startswith("The best weight_decay of sgd, 0.2, is the largest of the 3")


def test_a_missing_rate_is_not_an_edge(tmp_path: Path) -> None:
    grid(tmp_path, {0.1: 80, 0.3: 90})
    assert edge_warnings(made.compare(tmp_path))
    planned = [made.config("sgd", lr=1.0, validation=9)]
    assert edge_warnings(made.compare(tmp_path, planned=planned)) == []

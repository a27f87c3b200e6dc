"""The verdict in plain words: never more than the intervals allow."""

from pathlib import Path

import pytest

from report import made
from sgdf_lab import tasks
from sgdf_lab.report.statistics import Comparison, paired_interval
from sgdf_lab.report.verdict import headline, standing

REFERENCE = (60.0, 61.0)


def comparison(out: Path, **finals: tuple[float, ...]) -> Comparison:
    """SGDF against optimizers with these final values, one for each seed."""
    for name, values in {"sgdf": REFERENCE, **finals}.items():
        for seed, final in enumerate(values):
            made.run(out, made.config(name.replace("_", "-"), seed), [50, 55, final])
    return made.compare(out)


def verdict(out: Path, **finals: tuple[float, ...]) -> str:
    return headline(comparison(out, **finals))


def test_ahead_and_behind_come_with_their_interval(tmp_path: Path) -> None:
    # differences -10 and -9.9: mean -9.95, half-width 12.70620 * 0.05
    expected = "by 9.95 points (95 % interval 9.31 to 10.59, 2 seeds)."
    assert verdict(tmp_path / "a", adam=(50.0, 51.1)) == f"sgdf is ahead of adam {expected}"
    assert verdict(tmp_path / "b", adam=(70.0, 70.9)) == f"sgdf is behind adam {expected}"


def test_no_difference_found(tmp_path: Path) -> None:
    one = verdict(tmp_path / "one", adam=(60.5, 60.9))
    assert one == (
        "No difference found between sgdf and adam: adam differs by +0.20 points, and the 95 % "
        "interval, −3.61 to +4.01, includes zero (2 seeds)."
    )
    several = verdict(tmp_path / "several", adam=(60.5, 60.9), sgd=(60.2, 60.3))
    assert several == (
        "No difference found between sgdf and adam or sgd: every 95 % interval includes zero "
        "(2 seeds)."
    )


def test_several_rivals_are_grouped(tmp_path: Path) -> None:
    found = verdict(tmp_path, adam=(50.0, 51.1), lion=(40.0, 41.1), sgd=(60.2, 60.3),
                    adamw=(70.0, 70.9), radam=(60.0,))  # fmt: skip
    assert found == (
        "sgdf is ahead of adam and lion by 9.95 to 19.95 points (every 95 % interval excludes "
        "zero, 2 seeds) and behind adamw by 9.95 points (95 % interval 9.31 to 10.59, 2 seeds); no "
        "difference found from sgd. No verdict on radam: one seed is not enough."
    )


def test_many_rivals_are_counted(tmp_path: Path) -> None:
    names = ("adam", "adamw", "lion", "radam", "nadam")
    found = verdict(tmp_path, **dict.fromkeys(names, (60.5, 60.9)))
    assert found.startswith("No difference found between sgdf and any of 5 others: every 95 %")


def test_without_an_interval_there_is_no_verdict(tmp_path: Path) -> None:
    assert verdict(tmp_path / "one", adam=(90.0,)) == (
        "No verdict on sgdf against adam: one seed is not enough."
    )
    alike = verdict(tmp_path / "alike", adam=(61.0, 62.0))
    assert alike == (
        "No verdict on sgdf against adam: the difference is the same in all seeds, which gives no "
        "interval."
    )
    made.run(tmp_path / "none", made.config("sgdf", 0), [50, 55, 60])
    made.run(tmp_path / "none", made.config("adam", 1), [50, 55, 60])
    assert headline(made.compare(tmp_path / "none")) == (
        "No verdict on sgdf against adam: no seed was run with both."
    )


def test_nothing_to_compare(tmp_path: Path) -> None:
    alone = "Only sgdf was run: there is nothing to compare it with."
    assert verdict(tmp_path / "a") == alone
    made.run(tmp_path / "b", made.config("sgdf"), [50, 55, 60])
    made.run(tmp_path / "b", made.config("adam"), [50], status="diverged")
    assert headline(made.compare(tmp_path / "b")).startswith("Only sgdf has finished")
    made.run(tmp_path / "c", made.config("sgdf"), [50], status=None)
    assert headline(made.compare(tmp_path / "c")) == "No run has finished yet."


def test_only_chosen_settings_are_named(tmp_path: Path) -> None:
    """By the optimizer's name alone; where nothing was chosen, with their settings."""
    for lr, final in ((0.1, 60.0), (0.3, 70.0)):
        for seed in (0, 1):
            for name, lead in (("sgdf", 0.0), ("sgd", 1.0 + 0.1 * seed)):
                values = [50, 55, final + lead]
                extra = {"validation_accuracy": values}
                config = made.config(name, seed, lr=lr, validation=9)
                made.run(tmp_path / "chosen", config, values, extra=extra)
                made.run(tmp_path / "open", made.config(name, seed, lr=lr), values)
    chosen = headline(made.compare(tmp_path / "chosen"))
    assert chosen.startswith("sgdf is behind sgd by 1.05 points (")
    assert "sgd (lr 0.1)" in headline(made.compare(tmp_path / "open"))


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
    assert headline(found) == "Only sgdf was run: there is nothing to compare it with."


@pytest.mark.parametrize(
    ("differences", "accuracy", "distance"),
    [
        ([1.0, 1.1], "better", "worse"),
        ([-1.0, -1.1], "worse", "better"),
        ([-1.0, 1.1], "unclear", "unclear"),
    ],
)
def test_a_verdict_is_by_the_interval_and_the_metric(
    differences: list[float], accuracy: str, distance: str
) -> None:
    interval = paired_interval(differences)
    assert standing(tasks.find("cifar10").metric, interval) == accuracy
    assert standing(tasks.find("wgan-gp").metric, interval) == distance

import dataclasses
import json
from pathlib import Path

import pytest

from report import made
from sgdf_lab.reports.labels import visible
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import read_plans, read_runs
from sgdf_lab.runs.results import published_value
from sgdf_lab.support.errors import UserError


def test_a_run_folder_and_a_folder_of_runs_are_read_once_each(tmp_path: Path) -> None:
    one = made.run(tmp_path / "a", made.config(seed=0), [50, 60, 55])
    made.run(tmp_path / "a", made.config(seed=1), [50, 60, 58])
    records, complaints = read_runs([one, tmp_path / "a", one / ".." / one.name])
    assert [record.config.seed for record in records] == [0, 1]
    assert complaints == []
    assert (records[0].best, records[0].final, records[0].status) == (60, 55, "finished")
    assert records[0].first_at(55) == 2
    assert records[0].first_at(61) is None
    assert records[0].seconds_to(2) == 4.0


def test_a_run_without_a_result_is_unfinished_and_its_torn_line_is_ignored(tmp_path: Path) -> None:
    folder = made.run(tmp_path, made.config(), [50, 60], status=None)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "te')
    (record,), _ = read_runs([folder])
    assert (record.status, len(record.metrics)) == ("unfinished", 2)


@pytest.mark.parametrize("has_failed", [True, False])
def test_of_two_copies_of_a_run_the_finished_one_is_used(tmp_path: Path, has_failed: bool) -> None:
    other = made.run(tmp_path / "a", made.config(), [50], status=None)
    if has_failed:
        (other / "failure.json").write_text('{"error": "no memory"}')
    complete = made.run(tmp_path / "b", made.config(), [50, 60, 70])
    for order in (("a", "b"), ("b", "a")):
        (record,), (complaint,) = read_runs([tmp_path / name for name in order])
        assert record.folder == complete
        assert str(tmp_path / "a") in complaint


@pytest.mark.parametrize("steps", [(None, None), (50, 100)])
def test_a_line_of_a_text_has_its_step_and_an_old_one_is_known_by_its_number(
    tmp_path: Path, steps: tuple[int | None, int | None]
) -> None:
    own = {"step": [*steps]} if steps[0] else {}
    config = made.config(task="text", steps=100, eval_every=50)
    values = {"val_loss": [2.0, 1.5], "bits_per_byte": 1.0, **own}
    folder = made.run(tmp_path, config, [0, 0], extra=values)
    (record,), _ = read_runs([folder])
    assert (record.reached, record.first_at(1.6), record.seconds_to(100)) == (100, 100, 4.0)
    assert (record.seconds_to(50), record.by_place("val_loss")) == (2.0, {50: 2.0, 100: 1.5})


def test_a_line_of_another_step_is_damage(tmp_path: Path) -> None:
    config = made.config(task="text", steps=100, eval_every=50)
    values = {"val_loss": 2.0, "bits_per_byte": 1.0, "step": [50, 70]}
    made.run(tmp_path, config, [0, 0], extra=values)
    found, (complaint,) = read_runs([tmp_path])
    assert not found
    assert "line 2 is not that of step 100" in complaint


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        read_runs([tmp_path / "rums"])


def test_a_sweeps_plan_and_a_sweeps_failure_are_read(tmp_path: Path) -> None:
    folder = made.run(tmp_path, made.config(seed=0), [1], status=None)
    (folder / "failure.json").write_text('{"error": "it broke", "when": "now"}')
    plan = {"configs": [made.config(seed=0).as_json(), made.config(seed=1).as_json()]}
    (tmp_path / "sweep-x.json").write_text(json.dumps(plan))
    (tmp_path / "sweep-damaged.json").write_text("{")
    found, _ = read_runs([tmp_path])
    assert [(record.status, record.error) for record in found] == [("failed", "it broke")]
    assert [config.seed for config in read_plans([tmp_path])[0]] == [0, 1]


def paper_config(**changes: object) -> Config:
    return dataclasses.replace(made.config("sgdf", task="cifar10"), **changes)


def test_the_published_value_belongs_to_the_published_experiment() -> None:
    value = published_value(paper_config())
    assert value is not None
    assert (value.mean, value.std) == (91.76, 0.11)
    explicit = made.config("sgdf", task="cifar10", correction=True)  # as fig:correction has it
    assert published_value(explicit) == value


@pytest.mark.parametrize(
    "other",
    [
        paper_config(epochs=100),
        paper_config(milestones=(100,)),
        paper_config(batch=64),
        paper_config(data="synthetic"),
        paper_config(validation=5000),
        paper_config(schedule="cosine"),
        paper_config(optimizer="someones.Optimizer"),
        made.config("sgdf", task="cifar10", lr=0.3),
        made.config("sgdf", task="cifar10", correction=False),
        made.config("sgdf", task="digits"),
    ],
)
def test_and_to_no_other(other: Config) -> None:
    assert published_value(other) is None


def test_invisible_characters_are_replaced() -> None:
    assert visible("a\x1b[2Jb\u202ec\ud800") == "a\ufffd[2Jb\ufffdc\ufffd"


def test_a_finished_run_needs_its_metric_at_the_end(tmp_path: Path) -> None:
    config = made.config("sgdf", task="wgan-gp", epochs=2)
    made.run(tmp_path, config, [50, 50], extra={"fid": [80.0, None]})
    found, complaints = read_runs([tmp_path])
    assert not found
    assert "has no FID after the last epoch" in complaints[0]

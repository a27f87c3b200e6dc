import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from report import made
from sgdf.lab.runs import config as configs
from sgdf.lab.runs.config import Config
from sgdf.lab.runs.published import published_value
from sgdf.report import records, tables
from sgdf.support.errors import UserError


def labels(group: records.Group) -> list[str]:
    return [cell.label for cell in group]


def only_group(found: list[records.Record]) -> records.Group:
    (group,) = records.groups(found)
    return group


def test_a_run_folder_and_a_folder_of_runs_are_read_once_each(tmp_path: Path) -> None:
    one = made.run(tmp_path / "a", made.config(seed=0), [50, 60, 55])
    made.run(tmp_path / "a", made.config(seed=1), [50, 60, 58])
    found, complaints = records.read([one, tmp_path / "a", one / ".." / one.name])
    assert [record.config.seed for record in found] == [0, 1]
    assert complaints == []
    assert (found[0].best, found[0].final, found[0].status) == (60, 55, "finished")
    assert found[0].epochs_to(55) == 2
    assert found[0].epochs_to(61) is None
    assert found[0].seconds_to(2) == 4.0


def test_damaged_and_foreign_folders_are_named_and_skipped(tmp_path: Path) -> None:
    good = made.run(tmp_path, made.config(), [50, 60, 55])
    damage = {
        "no-json": ("config.json", "{"),
        "newer": ("config.json", json.dumps({"version": 99})),
        "no-settings": ("config.json", json.dumps({**made.config().as_json(), "settings": 3})),
        "a-list": ("metrics.jsonl", "[1]\n"),
        "a-gap": ("metrics.jsonl", '{"epoch": 2, "test_accuracy": 1}\n'),
        "a-word": ("metrics.jsonl", '{"epoch": 1, "test_accuracy": "high"}\n'),
        "infinite": ("metrics.jsonl", '{"epoch": 1, "test_accuracy": 1, "train_loss": 1e999}\n'),
        "short": ("metrics.jsonl", '{"epoch": 1, "test_accuracy": 1}\n'),
        "odd-status": ("result.json", '{"status": "splendid"}'),
        "odd-result": ("result.json", "7"),
        "not-text": ("metrics.jsonl", b"\xff\xfe"),
    }
    for name, (file, content) in damage.items():
        shutil.copytree(good, tmp_path / name)
        text = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name / file).write_bytes(text)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "notes.txt").write_text("not a folder")
    found, complaints = records.read([tmp_path, tmp_path / "notes.txt"])
    assert [record.folder for record in found] == [good]
    for name in (*damage, "foreign", "notes.txt"):
        assert sum(f"/{name}" in complaint for complaint in complaints) == 1, name
    assert not any("is the same run" in complaint for complaint in complaints)


def test_lost_times_or_environment_do_not_lose_the_run(tmp_path: Path) -> None:
    folder = made.run(tmp_path, made.config(), [50, 60, 55])
    (folder / "times.jsonl").write_text("{\n")
    (folder / "env.json").write_text("[3]")
    (record,), complaints = records.read([folder])
    assert (dict(record.seconds), record.environment, complaints) == ({}, {}, [])
    assert record.seconds_to(1) is None


def test_a_run_without_a_result_is_unfinished_and_its_torn_line_is_none(tmp_path: Path) -> None:
    folder = made.run(tmp_path, made.config(), [50, 60], status=None)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "te')
    (record,), _ = records.read([folder])
    assert (record.status, len(record.metrics)) == ("unfinished", 2)


def test_of_two_copies_of_a_run_the_finished_one_counts(tmp_path: Path) -> None:
    made.run(tmp_path / "a", made.config(), [50], status=None)
    whole = made.run(tmp_path / "b", made.config(), [50, 60, 70])
    (record,), (complaint,) = records.read([tmp_path / "a", tmp_path / "b"])
    assert record.folder == whole
    assert str(tmp_path / "a") in complaint


def test_a_folder_that_does_not_exist_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        records.read([tmp_path / "rums"])


def test_cells_differ_in_more_than_the_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgd", seed, lr=0.1), [1, 2, 3])
        made.run(tmp_path, made.config("sgd", seed, lr=0.05), [1, 2, 3])
        made.run(tmp_path, made.config("sgdf", seed), [1, 2, 3])
    group = only_group(records.read([tmp_path])[0])
    assert labels(group) == ["sgdf", "sgd, lr 0.05", "sgd, lr 0.1"]
    assert [list(cell.finished) for cell in group] == [[0, 1]] * 3


def test_labels_name_what_differs_and_nothing_else(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [1, 2, 3])
    made.run(tmp_path, made.config("adam", betas=(0.8, 0.99)), [1, 2, 3])
    made.run(tmp_path, made.config("adam", amsgrad=True), [1, 2, 3])
    made.run(tmp_path, made.config("lion", epochs=1, precision="bf16", validation=9), [1])
    group = only_group(records.read([tmp_path])[0])
    assert labels(group) == [
        "sgdf, 3 epochs, tf32",
        "adam, betas (0.8, 0.99), amsgrad default, 3 epochs, tf32",
        "adam, betas (0.9, 0.999), amsgrad True, 3 epochs, tf32",
        "lion, 1 epochs, bf16, 9 held out",
    ]


def test_the_order_of_options_does_not_tell_cells_apart(tmp_path: Path) -> None:
    """Earlier versions wrote them in one that differed from process to process."""
    for optimizer, order in (("sgdf", ("size", "classes")), ("sgd", ("classes", "size"))):
        config = made.config(optimizer, task="imagenet", epochs=1, size=64, classes=3)
        options = {name: config.options[name] for name in order}
        made.run(tmp_path, dataclasses.replace(config, options=options), [1])
    assert labels(only_group(records.read([tmp_path])[0])) == ["sgdf", "sgd"]
    said = {"weights": "random", "size": 32, "classes": 3}
    config = configs.make("finetune-pets", overrides=dict(reversed(said.items())))
    assert list(config.options) == list(said)


def test_of_a_tasks_options_those_are_named_that_differ(tmp_path: Path) -> None:
    same = {"task": "wgan-gp", "epochs": 1, "features": "runs/a"}
    made.run(tmp_path, made.config("sgdf", **same), [1], extra={"fid": 9.0})
    made.run(tmp_path, made.config("sgdf", **same, critic_norm="layer"), [1], extra={"fid": 8.0})
    group = only_group(records.read([tmp_path])[0])
    assert sorted(labels(group)) == ["sgdf", "sgdf, critic_norm layer"]
    assert tables.common_protocol(group).endswith("real data, features runs/a")


def test_one_and_one_point_zero_are_one_setting(tmp_path: Path) -> None:
    made.run(tmp_path, made.config(seed=0, lr=1), [1, 2, 3])
    made.run(tmp_path, made.config(seed=1, lr=1.0), [1, 2, 3])
    assert len(only_group(records.read([tmp_path])[0])) == 1


def test_planned_runs_that_are_not_there_are_missing(tmp_path: Path) -> None:
    made.run(tmp_path, made.config(seed=0), [1, 2, 3])
    planned = [made.config(name, seed) for name in ("sgdf", "adam") for seed in (0, 1)]
    (group,) = records.groups(records.read([tmp_path])[0], planned)
    assert [(cell.label, cell.missing) for cell in group] == [("sgdf", (1,)), ("adam", (0, 1))]


def test_a_sweeps_plan_and_a_sweeps_failure_are_read(tmp_path: Path) -> None:
    folder = made.run(tmp_path, made.config(seed=0), [1], status=None)
    (folder / "failure.json").write_text('{"error": "it broke", "when": "now"}')
    plan = {"configs": [made.config(seed=0).as_json(), made.config(seed=1).as_json()]}
    (tmp_path / "sweep-x.json").write_text(json.dumps(plan))
    (tmp_path / "sweep-damaged.json").write_text("{")
    found, _ = records.read([tmp_path])
    assert [(record.status, record.error) for record in found] == [("failed", "it broke")]
    assert [config.seed for config in records.planned([tmp_path])] == [0, 1]


def paper_config(**changes: object) -> Config:
    return dataclasses.replace(made.config("sgdf", task="cifar10"), **changes)


def test_the_published_value_stands_beside_the_published_experiment() -> None:
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
def test_and_beside_no_other(other: Config) -> None:
    assert published_value(other) is None


def test_what_cannot_be_seen_is_replaced() -> None:
    assert records.visible("a\x1b[2Jb\u202ec\ud800") == "a\ufffd[2Jb\ufffdc\ufffd"

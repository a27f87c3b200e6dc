import dataclasses
import json
from pathlib import Path

from report import made
from sgdf_lab.reports.cells import RunCell, cells_by_task
from sgdf_lab.reports.wording import common_protocol
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.records import read_runs


def cells_in(out: Path) -> list[RunCell]:
    (cells,) = cells_by_task(read_runs([out])[0])
    return cells


def labels(cells: list[RunCell]) -> list[str]:
    return [cell.label for cell in cells]


def test_cells_differ_in_more_than_the_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgd", seed, lr=0.1), [1, 2, 3])
        made.run(tmp_path, made.config("sgd", seed, lr=0.05), [1, 2, 3])
        made.run(tmp_path, made.config("sgdf", seed), [1, 2, 3])
    cells = cells_in(tmp_path)
    assert labels(cells) == ["sgdf", "sgd, lr 0.05", "sgd, lr 0.1"]
    assert [list(cell.finished) for cell in cells] == [[0, 1]] * 3


def test_labels_name_what_differs_and_nothing_else(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [1, 2, 3])
    made.run(tmp_path, made.config("adam", betas=(0.8, 0.99)), [1, 2, 3])
    made.run(tmp_path, made.config("adam", amsgrad=True), [1, 2, 3])
    held_out = {"validation_accuracy": 1.0}
    lion = made.config("lion", epochs=1, precision="bf16", validation=9)
    made.run(tmp_path, lion, [1], extra=held_out)
    cells = cells_in(tmp_path)
    assert labels(cells) == [
        "sgdf, 3 epochs, tf32",
        "adam, betas (0.8, 0.99), amsgrad default, 3 epochs, tf32",
        "adam, betas (0.9, 0.999), amsgrad True, 3 epochs, tf32",
        "lion, 1 epochs, bf16, 9 held out",
    ]


def test_the_order_of_options_does_not_matter(tmp_path: Path) -> None:
    """Earlier versions wrote them in an order that differed between processes."""
    for optimizer, order in (("sgdf", ("size", "classes")), ("sgd", ("classes", "size"))):
        config = made.config(optimizer, task="imagenet", epochs=1, size=64, classes=3)
        options = {name: config.options[name] for name in order}
        made.run(tmp_path, dataclasses.replace(config, options=options), [1])
    assert labels(cells_in(tmp_path)) == ["sgdf", "sgd"]
    options = {"weights": "random", "size": 32, "classes": 3}
    config = configs.make("finetune-pets", overrides=dict(reversed(options.items())))
    assert list(config.options) == list(options)


def test_labels_name_the_task_options_that_differ(tmp_path: Path) -> None:
    same = {"task": "wgan-gp", "epochs": 1, "features": "runs/a"}
    made.run(tmp_path, made.config("sgdf", **same), [1], extra={"fid": 9.0})
    made.run(tmp_path, made.config("sgdf", **same, critic_norm="layer"), [1], extra={"fid": 8.0})
    cells = cells_in(tmp_path)
    assert sorted(labels(cells)) == ["sgdf", "sgdf, critic_norm layer"]
    assert common_protocol(cells).endswith("real data, features runs/a")


def test_1_and_1_0_are_the_same_setting(tmp_path: Path) -> None:
    made.run(tmp_path, made.config(seed=0, lr=1), [1, 2, 3])
    made.run(tmp_path, made.config(seed=1, lr=1.0), [1, 2, 3])
    assert len(cells_in(tmp_path)) == 1


def test_1_and_1_0_with_one_seed_are_the_same_run(tmp_path: Path) -> None:
    made.run(tmp_path, made.config(lr=1), [1, 2, 3])
    made.run(tmp_path, made.config(lr=1.0), [1, 2, 4])
    records, (complaint,) = read_runs([tmp_path])
    assert len(records) == 1
    assert "is the same run as" in complaint


def test_planned_runs_without_a_folder_are_missing(tmp_path: Path) -> None:
    made.run(tmp_path, made.config(seed=0), [1, 2, 3])
    planned = [made.config(name, seed) for name in ("sgdf", "adam") for seed in (0, 1)]
    (cells,) = cells_by_task(read_runs([tmp_path])[0], planned)
    assert [(cell.label, cell.missing) for cell in cells] == [("sgdf", (1,)), ("adam", (0, 1))]


def on_machine(folder: Path, **machine: object) -> None:
    (folder / "env.json").write_text(json.dumps({"machine": machine}))


def test_a_cpu_computes_in_float32_whatever_was_asked_for(tmp_path: Path) -> None:
    for optimizer in ("sgdf", "sgd"):
        on_machine(made.run(tmp_path, made.config(optimizer), [1, 2, 3]), device="a", cuda=None)
    planned = [made.config("adam")]  # without a run yet
    (cells,) = cells_by_task(read_runs([tmp_path])[0], planned)
    assert "fp32" in common_protocol(cells)
    assert "tf32" not in common_protocol(cells)
    assert [cell.label for cell in cells] == ["sgdf", "adam", "sgd"]


def test_a_gpu_computes_as_asked(tmp_path: Path) -> None:
    on_machine(made.run(tmp_path, made.config("sgdf"), [1, 2, 3]), device="a", cuda=None)
    on_machine(made.run(tmp_path, made.config("sgd"), [1, 2, 3]), device="b", cuda="13.0")
    (cells,) = cells_by_task(read_runs([tmp_path])[0])
    assert [cell.label for cell in cells] == ["sgdf, fp32", "sgd, tf32"]


def test_labels_differ_if_only_the_precision_that_was_asked_for_does(tmp_path: Path) -> None:
    for precision in ("tf32", "fp32"):
        run = made.run(tmp_path, made.config(precision=precision), [1, 2, 3])
        on_machine(run, device="a", cuda=None)
    (cells,) = cells_by_task(read_runs([tmp_path])[0])
    assert sorted(cell.label for cell in cells) == ["sgdf, fp32", "sgdf, tf32"]

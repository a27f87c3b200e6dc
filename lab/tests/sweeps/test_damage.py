"""What a sweep does with runs whose files do not agree: nothing is chosen or recorded by them."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sgdf_lab.cli.main import main

pytestmark = pytest.mark.usefixtures("one_thread")

PLAN = """
task = "digits"
epochs = 2
data = "synthetic"
trials = 3
seeds = [1]
[set]
validation = 200
batch = 256
[grid]
optimizer = ["sgdf"]
"""


def sweep(folder: Path, *words: str) -> int:
    line = ["sweep", str(folder / "plan.toml"), "--device", "cpu", "--jobs", "1"]
    return main([*line, "--out", str(folder / "runs"), *words])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Callable[[tuple[str, ...]], Path]:
    """The folder of a sweep with these words, which is made once."""

    @functools.cache
    def made(words: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        (folder / "plan.toml").write_text(PLAN)
        assert sweep(folder, "--record", str(folder / "record.jsonl"), *words) == 0
        return folder

    return made


@pytest.fixture
def copy(whole, words, tmp_path) -> Path:
    return Path(shutil.copytree(whole(words), tmp_path / "copy"))


def metrics_in(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in folder.glob("runs/*/metrics.jsonl")}


def chosen(folder: Path) -> Path:
    """The folder of the trial that was chosen."""
    configs = {
        path.parent: json.loads(path.read_text()) for path in folder.glob("runs/*/con*.json")
    }
    (rate,) = (c["settings"]["lr"] for c in configs.values() if c["seed"] == 1)
    (trial,) = (p for p, c in configs.items() if c["seed"] == 0 and c["settings"]["lr"] == rate)
    return trial


def last_line(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        first, last = (run / "metrics.jsonl").read_text().splitlines()
        line = json.loads(last)
        change(line)
        (run / "metrics.jsonl").write_text(f"{first}\n{json.dumps(line)}\n")

    return damage


def result(**values: object) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


def cut(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[: len(text) * 3 // 4])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": cut,
    "emptied": lambda run: (run / "metrics.jsonl").write_text(""),
    "gone": lambda run: (run / "metrics.jsonl").unlink(),
    "no JSON": lambda run: (run / "metrics.jsonl").write_text("{\n{\n"),
    "NaN": last_line(lambda line: line.update(validation_accuracy=float("nan"))),
    "1e308": last_line(lambda line: line.update(validation_accuracy=1e308)),
    "null": last_line(lambda line: line.update(validation_accuracy=None)),
    "a value less": last_line(lambda line: line.pop("validation_accuracy")),
    "another result": result(final_test_accuracy=99.0),
    "a result of other epochs": result(epochs=1),
    "an odd result": result(status=3),
    "a result without its last value": result(final_test_accuracy=None),
    "a finished run called diverged": result(status="diverged"),
}

#: What a run can do without is not made again: only a record may still have it.
DAMAGE_BESIDE: dict[str, Callable[[Path], object]] = {
    "times emptied": lambda run: (run / "times.jsonl").write_text(""),
    "times cut": lambda run: (run / "times.jsonl").write_text(
        (run / "times.jsonl").read_text().splitlines(keepends=True)[0]
    ),
    "times gone": lambda run: (run / "times.jsonl").unlink(),
    "env emptied": lambda run: (run / "env.json").write_text(""),
}


#: Without checkpoints a damaged run has nothing to start from, whatever the damage is.
UNSAVED = ("--no-checkpoints",)
CASES = [*((name, ()) for name in DAMAGE), ("cut", UNSAVED), ("another result", UNSAVED)]
each_damage = pytest.mark.parametrize(("damage", "words"), CASES)


@each_damage
def test_a_damaged_trial_is_run_again_and_the_choice_stays(damage, words, copy, capsys):
    folder = copy
    before, trial = metrics_in(folder), chosen(folder)
    DAMAGE[damage](trial)
    capsys.readouterr()
    assert sweep(folder, *words) == 0
    assert "it is run again" in capsys.readouterr().out
    assert metrics_in(folder) == before, "the same numbers, and no other setting was trained"


@each_damage
def test_a_damaged_run_replaces_no_record_and_is_repaired_from_it(damage, words, copy):
    folder = copy
    record, before = folder / "record.jsonl", metrics_in(folder)
    recorded = record.read_bytes()
    DAMAGE[damage](chosen(folder))
    assert sweep(folder, "--record", str(record), *words) == 0
    assert record.read_bytes() == recorded
    assert metrics_in(folder) == before


@pytest.mark.parametrize("words", [()])
@pytest.mark.parametrize("damage", DAMAGE_BESIDE)
def test_what_stands_beside_the_numbers_stays_in_the_record(damage, words, copy):
    record = copy / "record.jsonl"
    recorded = record.read_bytes()
    DAMAGE_BESIDE[damage](chosen(copy))
    assert sweep(copy, "--record", str(record), *words) == 0
    assert record.read_bytes() == recorded


@pytest.mark.parametrize("words", [(), UNSAVED])
def test_a_copy_of_another_run_is_refused(words, copy, capsys):
    folder = copy
    record = folder / "record.jsonl"
    recorded = record.read_bytes()
    trial = chosen(folder)
    other = next(path for path in sorted(folder.glob("runs/*-s0-*")) if path != trial)
    shutil.rmtree(other)
    shutil.copytree(trial, other)
    assert sweep(folder, "--record", str(record), *words) == 1
    assert f"{other}/config.json has other settings than this run" in capsys.readouterr().err
    assert record.read_bytes() == recorded


def test_a_single_run_says_what_is_damaged(tmp_path, capsys):
    line = ["train", "digits", "--data", "synthetic", "--epochs", "1", "--device", "cpu"]
    line += ["--out", str(tmp_path)]
    assert main(line) == 0
    (run,) = tmp_path.iterdir()
    (run / "metrics.jsonl").write_text("")
    assert main(line) == 1
    said = capsys.readouterr().err
    assert "metrics.jsonl has 0 of 1 epochs; remove " in said
    (run / "result.json").unlink()
    assert main(line) == 0

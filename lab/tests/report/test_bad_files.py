"""`sgdf report` over folders in which files are damaged: the others are always shown."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from report import made
from sgdf_lab.cli.main import main
from sgdf_lab.runs.records import read_runs

DEEP = "[" * 100_000 + "]" * 100_000
DEEP_VALUE = "[" * 400 + "]" * 400


def settings_with(lr: Any = 0.5, **values: Any) -> str:
    config = made.config().as_json()
    return json.dumps({**config, "settings": {"lr": lr}, **values})


DAMAGE = {
    "config.json": [
        DEEP,
        settings_with().replace("0.5", DEEP_VALUE),
        settings_with(task=["digits"]),
        settings_with(epochs=10**400),
        settings_with(model=None),
        settings_with(milestones=["x"]),
        settings_with(milestones=3),
        settings_with(optimizer={}),
        settings_with(settings=3),
        settings_with(options=[]),
        settings_with(version=99),
        '{"version": 1}',
        "null",
        "{",
        "\\ud800",
    ],
    "metrics.jsonl": [
        DEEP + "\n",
        '{"epoch": 1, "test_accuracy": 1e301}\n',
        f'{{"epoch": 1, "test_accuracy": 1{"0" * 400}}}\n',
        "".join(
            json.dumps({"epoch": epoch, "test_accuracy": 1, "diverged": True}) + "\n"
            for epoch in (1, 2, 3)
        ),
        "\n",
        "{}\n",
        "[1]\n",
        '{"epoch": 2, "test_accuracy": 1}\n',
        '{"epoch": 1, "test_accuracy": 1}\n',
        '{"epoch": 1, "test_accuracy": "high"}\n',
        '{"epoch": 1, "test_accuracy": 1, "train_loss": 1e999}\n',
        b"\xff\xfe",
    ],
    "result.json": [
        *(DEEP, "{}", "[]", "7", "", '{"status": []}', '{"status": null}', '{"status": "splendid"}')
    ],
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    made.run(tmp_path / "runs", made.config(seed=1), [50, 60, 58])
    return made.run(tmp_path / "runs", made.config(seed=0), [50, 60, 55])


def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The output of the command, which must succeed and show the good runs."""
    code = main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "page.html")])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    assert "56.50 ± 2.12 (2)" in output.out.replace("\N{NO-BREAK SPACE}", " ")
    assert (tmp_path / "page.html").exists()
    return output.out


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_named_and_the_others_shown(name, good, tmp_path, capsys):
    for number, content in enumerate(DAMAGE[name]):
        shutil.copytree(good, tmp_path / "runs" / f"bad{number:02}")
        bad = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "runs" / f"bad{number:02}" / name).write_bytes(bad)
    lines = report(tmp_path, capsys).splitlines()
    for number, content in enumerate(DAMAGE[name]):
        named = [line for line in lines if f"/bad{number:02}" in line]
        assert len(named) == 1, content[:100]
        assert named[0].startswith("skipped: ")
        assert "is the same run" not in named[0], content[:100]


def test_what_is_no_run_is_named(good, tmp_path):
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "notes.txt").write_text("not a folder")
    found, complaints = read_runs([tmp_path / "runs", tmp_path / "notes.txt"])
    assert len(found) == 2
    assert ["foreign" in complaints[0], "notes.txt" in complaints[1]] == [True, True]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_a_folder_in_the_place_of_a_file(name, good, tmp_path, capsys):
    bad = tmp_path / "runs" / "bad"
    shutil.copytree(good, bad)
    (bad / name).unlink()
    (bad / name).mkdir()
    assert f"skipped: {bad}" in report(tmp_path, capsys)


@pytest.mark.parametrize(
    "content",
    [DEEP, DEEP_VALUE, "[]", '{"machine": 3, "earlier": 7}', '{"command": NaN, "earlier": [[]]}'],
)
def test_a_damaged_environment_loses_no_result(content, good, tmp_path, capsys):
    (good / "env.json").write_text(content)
    assert "skipped" not in report(tmp_path, capsys)


@pytest.mark.parametrize("seconds", ["NaN", "1e999", "1" + "0" * 400, DEEP, "null", '"x"'])
def test_damaged_times_lose_no_result(seconds, good, tmp_path, capsys):
    (good / "times.jsonl").write_text(f'{{"epoch": 1, "seconds": {seconds}}}\n')
    assert "skipped" not in report(tmp_path, capsys)
    (record,), complaints = read_runs([good])
    assert (record.seconds, record.seconds_to(1), complaints) == ({}, None, [])


@pytest.mark.parametrize("content", [DEEP, "{", "[]", '{"configs": [3]}', '{"configs": 3}'])
def test_a_damaged_plan_is_named(content, good, tmp_path, capsys):
    (tmp_path / "runs" / "sweep-odd.json").write_text(content)
    assert f"skipped: {tmp_path / 'runs' / 'sweep-odd.json'}" in report(tmp_path, capsys)


def test_no_runs_at_all(tmp_path, capsys):
    for place in (tmp_path, tmp_path / "file"):
        (tmp_path / "file").write_text("")
        assert main(["report", str(place), "-o", str(tmp_path / "page.html")]) == 1
        assert capsys.readouterr().err == (
            f"sgdf: there are no runs in {place}: `sgdf train` makes some\n"
        )

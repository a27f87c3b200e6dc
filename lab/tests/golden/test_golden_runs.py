"""Runs of released versions: this version resumes them, and reads finished ones.

They were written by make_runs.py and are never written again.
"""

import json
import shutil
from pathlib import Path

import pytest

import sgdf_lab
from sgdf_lab.cli.main import main
from sgdf_lab.runs import results
from sgdf_lab.runs.records import read_runs

HERE = Path(__file__).parent
VERSIONS = sorted(path for path in HERE.iterdir() if (path / "finished").exists())


def test_this_version_has_golden_runs():
    assert HERE / sgdf_lab.__version__ in VERSIONS


def copied(version, kind, tmp_path):
    out = tmp_path / kind
    shutil.copytree(version / kind, out)
    (folder,) = out.iterdir()
    return out, folder


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def command_of(folder):
    """The words that started the run: the folder of a run is named by its settings."""
    words = json.loads((folder / "env.json").read_text())["command"].split()
    assert words[:2] == ["sgdf", "train"]
    return words[1 : words.index("--out")]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_run_resumes_from_its_golden_checkpoint(version, tmp_path, capsys, one_thread):
    out, folder = copied(version, "interrupted", tmp_path)
    kept = metrics(folder)[:2]
    assert main([*command_of(folder), "--out", str(out)]) == 0, capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == [folder.name]
    assert not list(folder.glob("*.damaged*")) + list(folder.glob("*.foreign*"))
    environment = json.loads((folder / "env.json").read_text())
    assert [each["from_epoch"] for each in (*environment["earlier"], environment)] == [0, 2]
    _, straight = copied(version, "finished", tmp_path)
    assert metrics(folder)[:2] == kept
    for ours, theirs in zip(metrics(folder), metrics(straight), strict=True):
        assert ours.keys() == theirs.keys()
        for name in ("lr", "train_loss", "test_loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-2), name


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_finished_golden_run_is_read_and_not_trained_again(version, tmp_path, capsys):
    out, folder = copied(version, "finished", tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (record,), complaints = read_runs([out])
    assert not complaints
    assert record.config.name == folder.name
    assert main([*command_of(folder), "--out", str(out)]) == 0, capsys.readouterr().err
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in before}
    assert after == before
    assert results.read_config(folder).name == folder.name

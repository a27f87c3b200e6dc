"""What a sweep shows of its progress, in logs and within epochs."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from runs.commands import Clock
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.session import RunContext
from sgdf_lab.sweeps import progress
from sgdf_lab.sweeps.execute import Engine, run_all


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def runs(count=2, epochs=10):
    return [configs.make("digits", seed=n, epochs=epochs, data="synthetic") for n in range(count)]


def context_in(folder: Path) -> RunContext:
    return RunContext(folder, torch.device("cpu"))


def test_a_worker_tells_how_far_it_is_within_an_epoch(tmp_path, clock):
    texts: list[str] = []
    (config,) = runs(1)
    beats = progress.Heartbeat(texts.append, tmp_path)
    beats.step(config, 10, 40)
    assert progress.epochs_told(config, tmp_path) == 0, "a short run writes no file"
    clock.now += 6
    beats.step(config, 50, 40)
    beats.step(config, 60, 40)
    assert progress.epochs_told(config, tmp_path) == 1.25, "one write in five seconds"
    beats.ended(config, "finished")
    assert list(tmp_path.iterdir()) == []
    assert texts == []


def test_a_damaged_file_is_ignored(tmp_path):
    (config,) = runs(1)
    progress.file_of(config, tmp_path).write_text("0.x")
    assert progress.epochs_told(config, tmp_path) == 0


def test_a_log_has_a_line_if_there_is_something_new(tmp_path, clock):
    first, second = runs(2)
    (tmp_path / first.name).mkdir()
    (tmp_path / first.name / "metrics.jsonl").write_text("{}\n{}\n")
    texts: list[str] = []
    total = progress.Total([first, second], {}, context_in(tmp_path))
    lines = progress.LineWriter(total, texts.append)
    clock.now += 30
    lines.write()
    assert texts == []
    progress.file_of(second, tmp_path).write_text("1.5")
    lines.write()
    lines.write()
    assert texts == ["0 of 2 runs ended, 3.5 of 20 epochs done, 5:30 left"]


def test_a_sweep_without_a_terminal_shows_life(tmp_path, monkeypatch):
    """And leaves no file behind that is not a run's."""
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.01)
    console = Console(file=io.StringIO(), width=200)
    results = run_all(runs(1, epochs=30), context_in(tmp_path), Engine(jobs=1), console=console)
    assert [result["status"] for result in results] == ["finished"]
    assert "0 of 1 runs ended, " in console.file.getvalue()
    assert [path.name for path in tmp_path.iterdir()] == [runs(1, epochs=30)[0].name]


def test_the_bar_of_a_sweep_fits_80_columns(tmp_path):
    many = runs(3, epochs=1000)
    progress.file_of(many[0], tmp_path).write_text("999.5")
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with progress.board(many, {}, context_in(tmp_path), console):
        pass
    assert "0 of 3 runs" in console.file.getvalue()
    assert "999.5 of 3000 epochs" in console.file.getvalue()
    assert list(tmp_path.iterdir()) == [], "files of killed runs are removed"


def test_what_many_runs_say_is_said_once(tmp_path):
    """As on which text they train."""
    console = Console(file=io.StringIO(), width=80)
    with progress.board(runs(2), {}, context_in(tmp_path), console) as notify:
        for text in ("a text of 9 tokens", "a text of 9 tokens", "one run ended"):
            notify(text)
    assert console.file.getvalue().splitlines() == ["a text of 9 tokens", "one run ended"]

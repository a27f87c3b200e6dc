"""Sweeps: the files a user may write, and that no kill loses or repeats a run."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("rich")

import torch
from rich.console import Console

from runs.commands import children_of, long_runs
from sgdf_lab import paper
from sgdf_lab.cli.main import main
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.run_folder import RunFolder
from sgdf_lab.runs.session import RunContext, train
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import execute, plan, presets, worker
from sgdf_lab.sweeps.execute import Engine
from sgdf_lab.sweeps.plan import Tuned

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
DOCS = Path(__file__).parents[3] / "docs" / "sweeps.md"
CELLS = long_runs(40, "sgdf", "sgd", "sgd-ema")


# --- killing -------------------------------------------------------------------------------------


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def wait_for_a_busy_child(out: Path, parent: int, done: int = 0) -> tuple[int, str]:
    """The id of a worker some epochs into a run, and the run, once `done` runs have ended."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.01)
        for lock in out.glob("*/lock"):
            words = lock.read_text().split()
            if len(words) < 2 or (lock.parent / "result.json").exists():
                continue
            epochs = lines_in(lock.parent / "metrics.jsonl")
            if 3 <= epochs <= 20 and len(list(out.glob("*/result.json"))) >= done:
                pid = int(words[1])
                if pid in children_of(parent):
                    return pid, lock.parent.name
    raise TimeoutError


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def starts_of(out: Path, name: str) -> list[int]:
    """The first epoch of each start of a run."""
    environment = json.loads((out / name / "env.json").read_text())
    return [start["from_epoch"] for start in (*environment["earlier"], environment)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    """The metrics of uninterrupted runs, in this process, since a worker has to import torch."""
    out = tmp_path_factory.mktemp("undisturbed")
    for config in CELLS:
        (result,) = train([config], RunContext(out, CPU))
        assert result["status"] == "finished"
    return {c.name: (out / c.name / "metrics.jsonl").read_bytes() for c in CELLS}


def assert_ended_the_same(out: Path, results: list[dict], undisturbed: dict[str, bytes]) -> None:
    for config, result in zip(CELLS, results, strict=True):
        assert result == RunFolder(out, config).result()
        assert result["status"] == "finished"
        metrics = (out / config.name / "metrics.jsonl").read_bytes()
        assert metrics == undisturbed[config.name]
        assert len(metrics.splitlines()) == config.epochs
        starts = starts_of(out, config.name)
        assert starts[0] == 0
        assert starts == sorted(starts)


@pytest.mark.slow
def test_a_killed_worker(tmp_path, undisturbed):
    killed = []

    def kill() -> None:
        pid, name = wait_for_a_busy_child(tmp_path, os.getpid())
        os.kill(pid, signal.SIGKILL)
        killed.append(name)

    killer = threading.Thread(target=kill)
    killer.start()
    results = execute.run_all(CELLS, RunContext(tmp_path, CPU), Engine(jobs=2), console=quiet())
    killer.join()
    assert_ended_the_same(tmp_path, results, undisturbed)
    for config in CELLS:
        assert len(starts_of(tmp_path, config.name)) == 1 + (config.name in killed)
    assert starts_of(tmp_path, killed[0])[-1] > 0
    assert not workers_of(os.getpid())


def workers_of(pid: int) -> list[int]:
    found = []
    for child in children_of(pid):
        with contextlib.suppress(OSError):
            if b"sgdf_lab.sweeps.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def start_sweep(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, __file__, str(out)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
def test_a_sweep_that_is_stopped_and_then_killed(tmp_path, undisturbed):
    stopped = []

    def stop() -> None:
        stopped.append(wait_for_a_busy_child(tmp_path, os.getpid())[1])
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(KeyboardInterrupt, match=r"after \d of 6 runs; the same command resumes"):
        execute.run_all(CELLS, RunContext(tmp_path, CPU), Engine(jobs=2), console=quiet())
    stopper.join()
    assert not workers_of(os.getpid())
    saved = lines_in(tmp_path / stopped[0] / "metrics.jsonl")

    killed = start_sweep(tmp_path)
    _, hit = wait_for_a_busy_child(tmp_path, killed.pid, done=1)
    orphans = workers_of(killed.pid)
    killed.kill()
    killed.wait()
    starts = len(starts_of(tmp_path, hit))
    # Started again at once, it has to wait for the locks that the orphans still hold.
    results = execute.run_all(CELLS, RunContext(tmp_path, CPU), Engine(jobs=1), console=quiet())
    assert_ended_the_same(tmp_path, results, undisturbed)
    assert starts_of(tmp_path, stopped[0])[1] == saved  # nothing was lost when it stopped
    assert len(starts_of(tmp_path, hit)) == starts + 1  # the orphan stopped
    assert len(orphans) == 2
    while any(Path(f"/proc/{pid}").exists() for pid in orphans):
        time.sleep(0.05)  # one without a run to hold on to leaves by itself


def test_a_run_that_another_process_holds_is_waited_for(tmp_path, monkeypatch):
    config = tiny("sgd", lr=0.1)
    output = []
    with RunFolder(tmp_path, config).open():
        monkeypatch.setattr(worker, "LOCK_TIMEOUT", 0.3)
        (result,) = worker.attempt([config], RunContext(tmp_path, CPU), output.append)
        assert result["status"] == "failed"
        assert f"is being written by process {os.getpid()}" in result["error"]
    assert not (tmp_path / config.name / "failure.json").exists()  # it did not fail, it was busy

    monkeypatch.setattr(worker, "LOCK_TIMEOUT", 30)
    held = threading.Event()

    def hold() -> None:
        with RunFolder(tmp_path, config).open():
            held.set()
            time.sleep(0.4)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    (result,) = worker.attempt([config], RunContext(tmp_path, CPU), output.append)
    holder.join()
    assert result["status"] == "finished"
    assert output == []


# --- failing -------------------------------------------------------------------------------------

BAD = """
import os
from pathlib import Path
import torch

class Breaks(torch.optim.SGD):
    def step(self, closure=None):
        if Path(__file__).with_name("broken").exists():
            raise RuntimeError("no more steps")
        return super().step(closure)

class Dies(torch.optim.SGD):
    def step(self, closure=None):
        os.kill(os.getpid(), 9)
"""


def tiny(optimizer: str, lr: float, seed: int = 0) -> configs.Config:
    return configs.make(
        "digits",
        optimizer=optimizer,
        seed=seed,
        epochs=1,
        data="synthetic",
        overrides={"lr": lr, "batch": 512},
    )


@pytest.fixture
def bad_module(tmp_path, monkeypatch) -> str:
    folder = tmp_path / "modules"
    folder.mkdir()
    name = f"bad_{tmp_path.name}"
    (folder / f"{name}.py").write_text(BAD)
    (folder / "broken").touch()
    monkeypatch.syspath_prepend(folder)
    return name


def statuses(results: list[dict]) -> list[str]:
    return [result["status"] for result in results]


@pytest.mark.slow
def test_failures_leave_the_others_alone(tmp_path, bad_module):
    out = tmp_path / "out"
    runs = [
        tiny(f"{bad_module}.Dies", 0.1),
        tiny(f"{bad_module}.Breaks", 0.1),
        tiny("sgd", 1e10),
        tiny("sgd", 0.1),
    ]
    console = quiet()
    results = execute.run_all(runs, RunContext(out, CPU), Engine(jobs=2), console=console)
    assert statuses(results) == ["failed", "failed", "diverged", "finished"]
    assert results[0]["error"] == "its process was killed 3 times (signal 9)"
    assert results[1]["error"] == "RuntimeError: no more steps"
    output = console.file.getvalue()
    assert "Breaks lr 0.1 seed 0: failed: RuntimeError: no more steps\n" in output
    assert "diverged in epoch 1" in output
    for config, result in zip(runs[:2], results[:2], strict=True):
        noted = json.loads((out / config.name / "failure.json").read_text())
        assert noted["error"] == result["error"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", noted["when"])
    assert len(list(out.glob("*/failure.json"))) == 2


@pytest.mark.parametrize("together", [1, 2])
def test_retry(tmp_path, bad_module, together):
    context, engine = RunContext(tmp_path / "out", CPU), Engine(jobs=1, together=together)
    runs = [tiny(f"{bad_module}.Breaks", 0.1), tiny("sgd", 0.1)]
    failure = context.out / runs[0].name / "failure.json"

    def run(**options: bool) -> tuple[list[str], str]:
        console = quiet()
        results = execute.run_all(runs, context, engine, console=console, **options)
        return statuses(results), console.file.getvalue()

    ended, output = run()
    assert ended == ["failed", "finished"]
    assert output.count("failed: RuntimeError: no more steps") == 1
    (tmp_path / "modules" / "broken").unlink()
    ended, output = run()
    assert ended == ["failed", "finished"]
    assert "no more steps (in an earlier sweep; --retry trains it again)" in output
    assert failure.exists()
    ended, output = run(retry=True)
    assert ended == ["finished", "finished"]
    assert "failed" not in output
    assert not failure.exists()


# --- planning ------------------------------------------------------------------------------------

GRID = """
title = "SGDF against SGD"
task = "digits"
epochs = 1
data = "synthetic"
seeds = [0, 1]
[set]
validation = 300
batch = 512
[grid]
optimizer = ["sgdf", "sgd"]
lr = [0.05, 0.1]
[[cells]]
optimizer = "adam"
lr = 0.001
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run `sgdf sweep` in an empty folder with a file grid.toml; returns the output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")

    def run(*words: str, grid: str = GRID) -> str:
        Path("grid.toml").write_text(grid)
        main(["sweep", *words])
        output = capsys.readouterr()
        return (output.out + output.err).rstrip("\n")

    return run


def test_a_grid_is_every_combination_seed_by_seed(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    sweep = plan.sweep_from_file(tmp_path / "grid.toml")
    assert (sweep.name, sweep.title) == ("grid", "SGDF against SGD")
    cell = [("sgdf", 0.05), ("sgdf", 0.1), ("sgd", 0.05), ("sgd", 0.1), ("adam", 0.001)]
    assert [(c.seed, c.optimizer, c.lr) for c in sweep.configs] == [
        (seed, *words) for seed in (0, 1) for words in cell
    ]
    assert {(c.task, c.epochs, c.validation, c.batch) for c in sweep.configs} == {
        ("digits", 1, 300, 512)
    }
    assert sweep.configs[2].settings["momentum"] == 0.9  # as published, unless told otherwise


def test_the_first_seed_of_every_cell_runs_first():
    runs = [tiny(name, 0.1, seed) for name in ("sgdf", "sgd") for seed in (7, 3)]
    turns = [(c.optimizer, c.seed) for c in execute.in_order_of_seeds(runs)]
    assert turns == [("sgdf", 7), ("sgd", 7), ("sgdf", 3), ("sgd", 3)]


def test_the_command(command, tmp_path):
    listed = command("grid.toml", "--list").splitlines()
    assert len(listed) == 10 + 2
    assert listed[-2] == "10 runs"
    assert re.match(r"About \d+:\d\d on cpu, (one|\d+) at a time, at the pace", listed[-1])
    assert listed[2].startswith("digits mlp sgd seed 0, 1 epochs, lr 0.05")
    assert not (tmp_path / "runs").exists()

    output = command("grid.toml", "--jobs", "1", "--seeds", "3", "4", "--set", "validation=200")
    assert "SGDF against SGD" in output
    assert output.count("best test accuracy") == 10
    assert re.search(r"^sgd,\s+lr\s+0.05\s.*[\d.]+\s±\s[\d.]+\s\(2\)", output, re.MULTILINE)
    assert "The runs are in runs" in output
    planned = json.loads((tmp_path / "runs" / "sweep-grid.json").read_text())
    assert planned["title"] == "SGDF against SGD"
    assert planned["command"] == ("sgdf sweep grid.toml --jobs 1 --seeds 3 4 --set validation=200")
    for values in planned["configs"]:
        config = configs.Config.from_json(values, "the plan")
        assert config.validation == 200
        assert RunFolder(tmp_path / "runs", config).result()["status"] == "finished"

    again = command("grid.toml", "--jobs", "1", "--seeds", "3", "4", "--set", "validation=200")
    assert "best test accuracy" not in again
    assert "(2)" in again


def test_the_list_of_a_sweep_with_trials_counts_all_stages(command):
    stages = 'trials = 4\nfinalists = 2\nchoice_seeds = [7, 8]\ntask = "digits"'
    grid = GRID.replace('task = "digits"', stages).replace("[0, 1]", "[1, 2]")
    grid = re.sub(r"lr = \[.*\]\n", "", grid)
    listed = command("grid.toml", "--list", grid=grid).splitlines()
    assert sum(line.startswith("digits mlp") for line in listed) == 12
    assert "adam searches beta1 0.8 to 0.98, log of 1 - it; beta2 " in "\n".join(listed)
    assert any(line.startswith("warning: the contestants search 3 to 5 set") for line in listed)
    total = "12 trials, 12 runs of finalists, 6 runs of the chosen settings: 30 runs"
    assert listed[-2] == total


def test_no_estimate_is_a_sentence(command):
    words = ("grid.toml", "--list", "--data", "real", "--task", "cifar10", "--data-dir", "nowhere")
    *runs, last = command(*words).splitlines()
    assert len(runs) == 11
    assert last.startswith("No estimate of the time: cifar10 is not in nowhere")


def test_the_command_with_a_failure(command, bad_module):
    grid = GRID.replace('"sgdf", "sgd"', f'"{bad_module}.Breaks"')
    output = command("grid.toml", "--jobs", "1", "--seeds", "0", grid=grid)
    assert "1 failed" in output
    assert "sgdf: 2 of 3 runs failed; --retry tries them again" in output


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds", "seds", "there is no key 'seds': did you mean seeds?"),
        ('task = "digits"', "", "which task? There are digits, "),
        ('"digits"', '"digit"', "there is no task 'digit': did you mean digits?"),
        ('title = "SGDF against SGD"', "title = 3", "title is a text, not 3"),
        ("[0, 1]", "3", "seeds is a list of integers, like [0, 1, 2], not 3"),
        ("[0, 1]", "[0, 0]", "seeds has a duplicate: [0, 0]"),
        ('"sgd"]', '"sdg"]', "there is no optimizer 'sdg': did you mean sgd?"),
        ("[0.05, 0.1]", "0.05", "in the grid, lr is a list of values, not 0.05"),
        ("[0.05, 0.1]", '["high"]', "lr is a number, not 'high'"),
        ("[0.05, 0.1]", "[1, 1.0]", "duplicate cell: digits mlp sgdf, lr = 1.0, "),
        ("lr = [", "seed = [1]\nlr = [", "write seeds outside of the grid, as in seeds = ["),
        ("lr = 0.001", "lr = 0.001\nseed = 1", "write seeds outside of the cells, as in seeds"),
        ("[[cells]]", "[cells]", "cells are tables: write [[cells]] above"),
        ("[set]\nvalidation = 300\nbatch = 512", "set = 3", "set is a table: write [set] above"),
        ("[grid]", "[grid", "is not TOML: Expected ']'"),
    ],
)
def test_mistakes_are_one_sentence(command, old, new, sentence):
    assert old in GRID
    output = command("grid.toml", "--list", grid=GRID.replace(old, new, 1))
    assert output.startswith("sgdf: grid.toml")
    assert sentence in output
    assert "\n" not in output


def test_missing_data_is_reported_once(command):
    output = command("grid.toml", "--data", "real", "--task", "cifar10", "--data-dir", "nowhere")
    assert output.startswith("sgdf: cifar10 is not in nowhere: run `sgdf data fetch cifar10")
    assert output.count("\n") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--address", "127.0.0.1:1"], "--address and --gpus-per-run are of Ray: add --engine ray"),
        (["--gpus-per-run", "1"], "--address and --gpus-per-run are of Ray: add --engine ray"),
        (["--cpus-per-run", "-1"], "are numbers of at least 0"),
    ],
)
def test_options_of_ray(tmp_path, capsys, words, sentence):
    (tmp_path / "s.toml").write_text('task = "digits"\n[grid]\noptimizer = ["sgd"]\n')
    line = ["sweep", str(tmp_path / "s.toml"), "--device", "cpu", "--out", str(tmp_path / "runs")]
    assert main([*line, *words]) == 1
    assert sentence in capsys.readouterr().err


def test_no_file_no_preset_no_engine(command):
    assert command() == "sgdf: give a sweep file, or --preset lr-grid or budget or tuned"
    assert command("no.toml") == "sgdf: there is no file no.toml"
    assert "did you mean lr-grid?" in command("--preset", "lr-gird", "--task", "digits")
    assert "the preset lr-grid needs a task: --task" in command("--preset", "lr-grid")
    with pytest.raises(UserError, match="there is no engine 'rey'"):
        Engine("rey")


# --- presets and documentation ------------------------------------------------------------------


def test_lr_grid_has_half_steps():
    sweep = presets.sweep_from_preset("lr-grid", {"task": "cifar10", "model": "resnet34"})
    assert sweep.name == "lr-grid-cifar10-resnet34"
    rates = {
        name: [c.lr for c in sweep.configs if c.optimizer == name]
        for name in ("sgdf", "sgd", "adam")
    }
    assert rates["sgdf"] == [10, 5, 1, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001]
    assert rates["sgd"] == rates["adam"] == rates["sgdf"]
    assert {c.validation for c in sweep.configs} == {5000}


def test_budget_is_the_published_search():
    pytest.importorskip("pytorch_optimizer")
    values = {"task": "digits", "data": "synthetic", "seeds": [0, 1]}
    sweep = presets.sweep_from_preset("budget", values)
    trials = Counter(config.optimizer for config in sweep.configs if config.seed == 1)
    assert trials == {name: search.trials for name, search in paper.SEARCHES.items()}
    assert f"{trials.total()} cells" in DOCS.read_text()
    adamw = [c.settings for c in sweep.configs if c.optimizer == "adamw"]
    assert {settings["betas"][0] for settings in adamw} == {0.5, 0.6, 0.7, 0.8, 0.9}
    assert {c.validation for c in sweep.configs} == {204}


def test_the_example_of_the_documentation(command):
    text = DOCS.read_text()
    example, of_trials, _ = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    tuned = plan.sweep_from_table("docs", tomllib.loads(of_trials))
    assert isinstance(tuned, Tuned)
    assert [len(trials) for trials in tuned.trials] == [8, 8]
    output = command("grid.toml", "--jobs", "1", "--epochs", "1", grid=example)
    lines = [line for line in output.splitlines() if "(3)" in line]
    assert len({line.partition("  ")[0] for line in lines}) == 7
    for preset in presets.PRESET_NAMES:
        assert f"--preset {preset} " in text


if __name__ == "__main__":  # the sweep that a test kills
    execute.run_all(CELLS, RunContext(Path(sys.argv[1]), CPU), Engine(jobs=2))

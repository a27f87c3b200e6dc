"""Several processes on one run, on the CPU: the steps, the results and the restarts of one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from sgdf.cli.main import main
from sgdf.lab.runs import config as configs
from sgdf.lab.runs.session import Place, train
from sgdf.lab.train.distributed import ALONE, Team
from sgdf.lab.train.loop import Trainer
from sgdf.support.errors import UserError

TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
    "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
]  # fmt: skip
TRAIN = ["-m", "sgdf", "train", "digits", "--device", "cpu"]


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return said


def metrics(folder: Path) -> list[dict]:
    (path,) = folder.glob("*/metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_processes_take_the_steps_of_one(tmp_path):
    """With momentum, clipping and norms; a batch of 31 is shared as 16 and 15."""
    words = ["--epochs", "2", "--optimizer", "sgd", "--set", "batch=31", "--set", "clip=2.0",
             "--set", "norms=true", "--set", "validation=101"]  # fmt: skip
    two = start([*TORCHRUN, *TRAIN, *words, "--out", "two"], tmp_path)
    finish(start([sys.executable, *TRAIN, *words, "--out", "one"], tmp_path))
    said = finish(two)
    assert said.count("best test accuracy") == 1, "one of them speaks"
    for ours, alone in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        assert ours.keys() == alone.keys()
        for name, value in alone.items():
            assert ours[name] == pytest.approx(value, rel=1e-4), name


def test_processes_that_share_the_weights_take_the_steps_of_one(tmp_path):
    """FSDP2; the last of 47 batches is one image, which one of the two processes goes without."""
    words = ["--epochs", "2", "--set", "batch=31", "--set", "clip=2.0", "--set", "norms=true",
             "--set", "accumulate=2", "--set", "validation=10"]  # fmt: skip
    two = start([*TORCHRUN, *TRAIN, *words, "--shard", "--out", "two"], tmp_path)
    finish(start([sys.executable, *TRAIN, *words, "--out", "one"], tmp_path))
    finish(two)
    for ours, alone in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        assert ours.keys() == alone.keys()
        for name, value in alone.items():
            assert ours[name] == pytest.approx(value, rel=1e-3), name


def test_a_checkpoint_of_shards_goes_on_with_one_process_and_with_shards(tmp_path):
    words = ["--epochs", "12", "--out"]
    for out in ("to one", "to shards"):
        process = start([*TORCHRUN, *TRAIN, "--shard", *words, out], tmp_path)
        wait_for_epochs(tmp_path / out, 2)
        process.send_signal(signal.SIGTERM)  # which torchrun passes on
        process.communicate(timeout=100)
        assert not list((tmp_path / out).glob("*/result.json"))
    finish(start([sys.executable, *TRAIN, *words, "to one"], tmp_path))
    finish(start([*TORCHRUN, *TRAIN, "--shard", *words, "to shards"], tmp_path))
    finish(start([sys.executable, *TRAIN, *words, "one"], tmp_path))
    for out in ("to one", "to shards"):
        for mixed, alone in zip(metrics(tmp_path / out), metrics(tmp_path / "one"), strict=True):
            assert mixed["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-2, abs=1e-3)


def test_shards_need_several_processes(capsys):
    assert main(["train", "digits", "--shard"]) == 1
    assert "torchrun" in capsys.readouterr().err


def test_sweeps_do_not_go_with_torchrun(tmp_path, capsys, monkeypatch):
    """Every process would run all of it, and wait for the folders that the others hold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (["demo"], ["reproduce", "vit-b32"], ["sweep", "--preset", "lr-grid", "--task",
                  "digits"]):  # fmt: skip
        assert main([*words, "--device", "cpu"]) == 1
        assert "use it with sgdf train only" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_killed_process_is_started_again_and_the_run_ends_the_same(tmp_path):
    words = ["--epochs", "12", "--optimizer", "sgdf"]
    straight = start([*TORCHRUN, *TRAIN, *words, "--out", "straight"], tmp_path)
    finish(straight)
    elastic = [*TORCHRUN, "--max-restarts", "3", *TRAIN, *words, "--out", "killed"]
    process = start(elastic, tmp_path)
    wait_for_epochs(tmp_path / "killed", 2)
    victim = workers_of(process.pid)[-1]
    os.kill(victim, signal.SIGKILL)
    finish(process)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "straight")
    (path,) = (tmp_path / "killed").glob("*/env.json")
    environment = json.loads(path.read_text())
    assert len(environment["earlier"]) == 1
    assert environment["from_epoch"] >= 1, "it went on from a checkpoint"


def test_a_run_of_two_goes_on_with_one(tmp_path):
    words = ["--epochs", "12", "--out", "runs"]
    process = start([*TORCHRUN, *TRAIN, *words], tmp_path)
    wait_for_epochs(tmp_path / "runs", 2)
    process.send_signal(signal.SIGTERM)  # which torchrun passes on
    process.communicate(timeout=100)
    assert not list((tmp_path / "runs").glob("*/result.json"))
    finish(start([sys.executable, *TRAIN, *words], tmp_path))
    finish(start([sys.executable, *TRAIN, "--epochs", "12", "--out", "one"], tmp_path))
    for mixed, alone in zip(metrics(tmp_path / "runs"), metrics(tmp_path / "one"), strict=True):
        assert mixed["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-2, abs=1e-3)


def wait_for_epochs(out: Path, count: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        for path in out.glob("*/metrics.jsonl"):
            if len(path.read_text().splitlines()) >= count and (path.parent / "last.pt").exists():
                return
        time.sleep(0.02)
    raise AssertionError("no epochs in time")


def workers_of(pid: int) -> list[int]:
    """The children of torchrun, which the system lists by its threads."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return sorted(found)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 6, 7, 128])
def test_shares_are_even_and_leave_nothing_out(size, count):
    shares = [Team(rank, size).share(count) for rank in range(size)]
    covered = [i for first, many in shares for i in range(first, first + many)]
    assert covered == list(range(count))
    assert max(many for _, many in shares) - min(many for _, many in shares) <= 1


def test_a_process_stops_when_another_was_asked_to(tmp_path):
    """One of several nodes may be told alone."""

    class Asked(Team):
        def any(self, flag: bool) -> bool:
            return True

    config = configs.make("digits", epochs=3)
    with pytest.raises(KeyboardInterrupt, match="saved: 1 epochs"):
        train([config], Place(tmp_path, torch.device("cpu")), team=Asked())


def test_too_few_examples_for_the_processes():
    config = configs.make("digits", overrides={"batch": 4})
    model, device = torch.nn.Linear(2, 2), torch.device("cpu")
    with pytest.raises(UserError, match="a batch of 4 is too small for 5 processes"):
        Trainer(config, model, range(9), device, team=Team(0, 5))
    with pytest.raises(
        UserError, match="2 training images are too few for 3 processes: leave --sh"
    ):
        Trainer(config, model, range(2), device, team=Team(0, 3, shards=True))


def test_alone_nothing_is_asked_of_others():
    tensor = torch.tensor([1.0, 2.0])
    ALONE.sum_([tensor])
    ALONE.follow_([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert ALONE.first_says("x") == "x"
    assert ALONE.any(True)
    assert not ALONE.any(False)

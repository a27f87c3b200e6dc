"""Several processes on one run, on the CPU: same steps, results and restarts as one process."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runs import interrupted
from runs.commands import Ended, fault
from sgdf_lab import optimizers
from sgdf_lab.cli.main import main
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.session import RunContext, train
from sgdf_lab.support.errors import UserError
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.loop import Trainer
from train import shard_driver

TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
    "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
]  # fmt: skip
TRAIN = ("train", "digits", "--device", "cpu")
# One of the processes gets SIGTERM in the third epoch, and tells the other.
STOPPED = fault("replace last.pt", "SIGTERM", nth=2)


def train_with(start: Callable[..., Ended], *words: str, out: Path, **request: Any) -> str:
    ended = start((*TRAIN, *words), out, **request)
    assert ended.code == (130 if request else 0), ended.output
    return ended.output


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
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def metrics(folder: Path) -> list[dict]:
    (path,) = folder.glob("*/metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_alike(ours: list[dict], alone: list[dict], *names: str, **tolerance: float) -> None:
    """These metrics, or all, in every epoch."""
    for mine, others in zip(ours, alone, strict=True):
        assert mine.keys() == others.keys()
        for name in names or others:
            assert mine[name] == pytest.approx(others[name], **tolerance), name


def test_two_processes_take_the_steps_of_one(teams, tmp_path):
    """With momentum, clipping and norms; a batch of 31 is shared as 16 and 15."""
    words = ["--epochs", "2", "--optimizer", "sgd", "--set", "batch=31", "--set", "clip=2.0",
             "--set", "norms=true", "--set", "validation=101"]  # fmt: skip
    output = train_with(teams.run_two, *words, out=tmp_path / "two")
    train_with(teams.run, *words, out=tmp_path / "one")
    assert output.count("best test accuracy") == 1, "only one of them prints"
    assert_alike(metrics(tmp_path / "two"), metrics(tmp_path / "one"), rel=1e-4)


def test_processes_that_share_the_weights_take_the_steps_of_one(teams, tmp_path):
    """FSDP2; the last of 47 batches is one image, so one of the two processes has none."""
    words = ["--epochs", "2", "--set", "batch=31", "--set", "clip=2.0", "--set", "norms=true",
             "--set", "accumulate=2", "--set", "validation=10"]  # fmt: skip
    train_with(teams.run_two, *words, "--shard", out=tmp_path / "two")
    train_with(teams.run, *words, out=tmp_path / "one")
    assert_alike(metrics(tmp_path / "two"), metrics(tmp_path / "one"), rel=1e-3)


@pytest.fixture(scope="module")
def six_epochs(teams, tmp_path_factory):
    """The metrics of one process."""
    out = tmp_path_factory.mktemp("alone") / "one"
    train_with(teams.run, "--epochs", "6", out=out)
    return metrics(out)


def test_a_checkpoint_of_shards_resumes_with_one_process_and_with_shards(
    teams, tmp_path, six_epochs
):
    shards, one = tmp_path / "shards", tmp_path / "one"
    train_with(teams.run_two, "--epochs", "6", "--shard", out=shards, **STOPPED)
    assert not list(shards.glob("*/result.json"))
    shutil.copytree(shards, one)
    train_with(teams.run, "--epochs", "6", out=one)
    train_with(teams.run_two, "--epochs", "6", "--shard", out=shards)
    for out in (one, shards):
        (path,) = out.glob("*/env.json")
        assert json.loads(path.read_text())["from_epoch"] >= 3
        assert_alike(metrics(out), six_epochs, "train_loss", rel=1e-2, abs=1e-3)


def test_shards_need_several_processes(capsys):
    assert main(["train", "digits", "--shard"]) == 1
    assert "torchrun" in capsys.readouterr().err


def test_sweeps_refuse_torchrun(tmp_path, capsys, monkeypatch):
    """Every process would run all of it, and wait for the locks that the others hold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (["demo"], ["reproduce", "vit-b32"], ["sweep", "--preset", "lr-grid", "--task",
                  "digits"]):  # fmt: skip
        assert main([*words, "--device", "cpu"]) == 1
        assert "use it with sgdf train only" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_killed_process_is_restarted_and_the_run_ends_the_same(teams, tmp_path):
    """By torchrun itself, as a user starts it."""
    words = ("--epochs", "4", "--optimizer", "sgdf")
    killed = [interrupted.__file__, "replace last.pt", "2"]
    torchrun = [*TORCHRUN, "--max-restarts", "3", *killed, *TRAIN, *words, "--out", "killed"]
    process = start(torchrun, tmp_path)
    train_with(teams.run_two, *words, out=tmp_path / "straight")
    finish(process)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "straight")
    (path,) = (tmp_path / "killed").glob("*/env.json")
    environment = json.loads(path.read_text())
    assert [each["from_epoch"] for each in (*environment["earlier"], environment)] == [0, 2]


@pytest.mark.parametrize(
    ("task", "settings", "shard", "near"),
    [
        ("fashion-mnist", {"optimizer": "adam", "batch": 256, "clip": 1.0}, False, 1e-3),
        # Codes and scales are scattered by rows, and encoded again for the other memory order.
        ("digits", {"optimizer": "sgdf", "batch": 256, "state_dtype": "int8"}, True, 0.02),
    ],
    ids=["images", "8-bit state, sharded"],
)
def test_a_run_resumes_with_two_and_again_with_one(teams, tmp_path, task, settings, shard, near):
    """Epoch by epoch with one process, two, and one: the numbers of one process throughout."""
    model, (optimizer, *overrides) = "cnn" if shard else "mlp", settings.items()
    config = configs.make(task, model=model, optimizer=optimizer[1], epochs=3, data="synthetic",
                          overrides=dict(overrides))  # fmt: skip
    words = ["train", task, "--model", model, "--data", "synthetic", "--device", "cpu",
             "--epochs", "3", "--optimizer", optimizer[1], *["--shard"] * shard]  # fmt: skip
    words += [word for name, value in overrides for word in ("--set", f"{name}={value}")]
    contexts = [RunContext(tmp_path / out, torch.device("cpu")) for out in ("mixed", "one")]
    with pytest.raises(KeyboardInterrupt, match="saved: 1 epochs"):
        train([config], contexts[0], team=Asked())
    ended = teams.run_two(tuple(words), tmp_path / "mixed", one_epoch=True)
    assert ended.code == 130, ended.output
    assert [line["epoch"] for line in metrics(tmp_path / "mixed")] == [1, 2]
    folder = tmp_path / "mixed" / config.name
    state = torch.load(folder / "last.pt", weights_only=True)["optimizer"]["state"]
    assert any(moments["exp_avg"].dtype == torch.int8 for moments in state.values()) == shard
    for context in contexts:
        train([config], context)
    mixed, one = metrics(tmp_path / "mixed"), metrics(tmp_path / "one")
    assert_alike(mixed, one, "lr", "train_loss", "test_loss", rel=near)
    environment = json.loads((folder / "env.json").read_text())
    starts = [*environment["earlier"], environment]
    assert [each["from_epoch"] for each in starts] == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 6, 7, 128])
def test_shares_are_even_and_leave_nothing_out(size, count):
    shares = [Team(rank, size).share(count) for rank in range(size)]
    covered = [i for first, many in shares for i in range(first, first + many)]
    assert covered == list(range(count))
    assert max(many for _, many in shares) - min(many for _, many in shares) <= 1


class Asked(Team):
    """Another process got a signal to stop."""

    def any(self, flag: bool) -> bool:
        return True


def test_a_process_stops_when_another_got_the_signal(tmp_path):
    """It may reach one of several nodes only."""
    config = configs.make("digits", epochs=3)
    with pytest.raises(KeyboardInterrupt, match="saved: 1 epochs"):
        train([config], RunContext(tmp_path, torch.device("cpu")), team=Asked())


def test_too_few_examples_for_the_processes():
    config = configs.make("digits", overrides={"batch": 4})
    model, device = torch.nn.Linear(2, 2), torch.device("cpu")
    with pytest.raises(UserError, match="a batch of 4 is too small for 5 processes"):
        Trainer(config, model, range(9), device, team=Team(0, 5))
    with pytest.raises(
        UserError, match="2 training images are too few for 3 processes: leave --sh"
    ):
        Trainer(config, model, range(2), device, team=Team(0, 3, shards=True))


def test_one_process_communicates_with_none():
    tensor = torch.tensor([1.0, 2.0])
    SINGLE_PROCESS.sum_([tensor])
    SINGLE_PROCESS.broadcast_([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert SINGLE_PROCESS.broadcast_object("x") == "x"
    assert SINGLE_PROCESS.any(True)
    assert not SINGLE_PROCESS.any(False)


# --- the optimizers with shared weights -----------------------------------------------------------

SHARDABLE = [
    name for name, row in optimizers.OPTIMIZERS.items() if row.shardable and not row.needs_hessian
]
REFUSED = sorted(optimizers.OPTIMIZERS.keys() - {*SHARDABLE})


@pytest.mark.parametrize("name", [*REFUSED, "wiener-soap"])
def test_an_optimizer_that_cannot_share_weights_is_refused_before_training(name):
    with pytest.raises(UserError, match=f"^{name} does not support --shard: leave it out$"):
        shard_driver.train(name, Team(0, 2, shards=True))


@pytest.mark.slow
def test_every_other_optimizer_shares_weights(tmp_path):
    """Losses of a language model in two processes are those of one."""
    names = [*SHARDABLE, "wiener-muon"]
    file = tmp_path / "losses.json"
    finish(start([*TORCHRUN, shard_driver.__file__, str(file), *names], tmp_path))
    losses = json.loads(file.read_text())
    assert {"muon", "sgdf", "filter-adamw", "schedule-free-adamw"} <= losses.keys()
    torch.set_num_threads(1)
    for name in names:
        # Rounding chooses a part of the first eigenbasis: the sums over processes round otherwise.
        rel = 1e-3 if name in ("filter-soap", "filter-muon-eigen") else 1e-4
        assert losses[name] == pytest.approx(shard_driver.train(name), rel=rel), name

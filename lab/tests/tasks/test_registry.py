"""Tasks by name, and a new one by adding a file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sgdf_lab
from sgdf_lab import tasks
from sgdf_lab.registry import tasks as registry
from sgdf_lab.support.errors import UserError

NEW_TASK = '''
"""A line through noisy points."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from sgdf_lab.training.distributed import SINGLE_PROCESS
from sgdf_lab.training.loop import Trainer

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

def check(config: "Config", data_dir) -> None:
    pass


def build_trainer(config: "Config", device, *, data_dir=None, compile=True, team=SINGLE_PROCESS):
    torch.manual_seed(config.seed)
    return LineTrainer(config, nn.Linear(1, 1), Points(config), device, compile=compile, team=team)


class Points:
    resident = False

    def __init__(self, config):
        self.position = torch.zeros((), dtype=torch.int64)
        self.x = torch.linspace(-1, 1, 40)[:, None]
        self.y = config.option("slope") * self.x

    def __len__(self):
        return len(self.x)

    def draw(self, epoch):
        self.order = torch.randperm(40, generator=torch.Generator().manual_seed(epoch))

    def begin(self, epoch):
        self.draw(epoch)
        self.position.zero_()

    def take(self, position, size):
        index = self.order[int(position) : int(position) + size]
        return self.x[index], self.y[index]


class LineTrainer(Trainer):
    def _loss(self, position, size):
        x, y = self.batches.take(position, size)
        return (self.model(x) - y).square().sum(), torch.zeros((), dtype=torch.int64)

    def _evaluate(self):
        error = (self.model(self.batches.x) - self.batches.y).square().sum()
        return {"test_error": (error.detach(), 40.0)}
'''


ROW = """
    Task(
        "line",
        "linear",
        epochs=3,
        batch=10,
        trainer="sgdf_lab.tasks.line",
        models=("linear",),
        metrics=(Metric("test_error", "squared error", unit="", lower_is_better=True),),
        options={"slope": 2.0},
    ),
)
TASKS = """


def python(folder: Path, *arguments: str) -> str:
    """With the package in `folder`."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_new_task_is_a_row_and_its_trainer(tmp_path):
    """It is listed, trained, resumable and compared by its own metric, without another edit."""
    (package,) = sgdf_lab.__path__
    lab = tmp_path / "sgdf_lab"
    shutil.copytree(package, lab, ignore=shutil.ignore_patterns("__pycache__"))
    (lab / "tasks" / "line.py").write_text(NEW_TASK)
    table = lab / "registry" / "tasks.py"
    table.write_text(table.read_text().replace("\n)\nTASKS = ", ROW, 1))
    words = ["line", "--optimizer", "sgd", "--set", "lr=0.05", "--set", "slope=3.0"]
    said = python(tmp_path, "-m", "sgdf_lab", "train", *words, "--device", "cpu", "--out", "runs")
    assert "best squared error" in said
    (folder,) = (tmp_path / "runs").iterdir()
    errors = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(errors) == 3
    assert errors[-1]["test_error"] < 0.5 * errors[0]["test_error"]
    assert json.loads((folder / "config.json").read_text())["options"] == {"slope": 3.0}
    assert "line" in python(tmp_path, "-m", "sgdf_lab", "train", "--help")


def test_the_tasks():
    photos = ("cifar10", "cifar100", "pets", "flowers102", "food101", "imagenet")
    assert list(tasks.TASKS) == [
        *("digits", "fashion-mnist", "cifar10", "cifar100", "voc", "cifar10-fast", "wgan-gp"),
        *("text", "enwik8", "text8", "imagenet", "images"),
        *(f"finetune-{name}" for name in photos),
    ]
    kinds = {name: tasks.find(name).kind for name in ("digits", "voc", "wgan-gp", "text")}
    assert kinds == {
        "digits": "classify", "voc": "detection", "wgan-gp": "gan", "text": "language"
    }  # fmt: skip
    with pytest.raises(UserError, match="did you mean cifar10"):
        tasks.find("cifar1")


def test_two_tasks_cannot_share_a_name():
    assert len(registry._ROWS) == len(registry.TASKS)

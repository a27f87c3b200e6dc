"""Language models on a GPU: captured, compiled, several at once, with the numbers of the CPU."""

from typing import Any

import pytest
import torch

from gpu.trainers import NEEDS_GPU, assert_resumes, assert_undisturbed, epochs, same
from sgdf_lab.runs import config as configs
from sgdf_lab.training import device as cuda_graphs
from sgdf_lab.training.loop import Trainer

pytestmark = NEEDS_GPU


def make(
    device: str = "cuda", optimizer: str = "adamw", seed: int = 0, precision: str = "fp32",
    compile: bool = False, **overrides: Any,
) -> Trainer:  # fmt: skip
    config = configs.make(
        "text",
        model="gpt-tiny",
        optimizer=optimizer,
        seed=seed,
        precision=precision,
        data="synthetic",
        overrides={"batch": 8, "steps": 60, "eval_every": 10, "eval_tokens": 4096, **overrides},
    )
    return config.task_definition.module.build_trainer(
        config, torch.device(device), compile=compile
    )


@pytest.mark.parametrize("name", ["sgdf", "adamw", "sgd", "lion"])
def test_the_numbers_are_the_cpus(name):
    on_gpu = make(optimizer=name)
    same(epochs(on_gpu, 4), epochs(make("cpu", optimizer=name), 4), rel=1e-2)
    assert on_gpu.graphs
    assert len(on_gpu.graphs.captured) == 2  # the step and the evaluation


def test_captured_equals_not_captured(monkeypatch):
    captured = epochs(make(norms=True, accumulate=2), 5)
    monkeypatch.setattr(cuda_graphs, "WARM_UP", 10**9)
    same(captured, epochs(make(norms=True, accumulate=2), 5))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_compiled_is_near(precision):
    plain = epochs(make(), 4)
    same(plain, epochs(make(precision=precision, compile=True), 4), rel=0.03)


def test_trainers_that_take_turns_do_not_disturb_each_other():
    first, second = assert_undisturbed(lambda seed: make(seed=seed), 3)
    assert first["val_loss"] != second["val_loss"]


def test_resuming_from_a_checkpoint(tmp_path):
    assert_resumes(make, tmp_path / "last.pt", 4, 6)


def test_sophia_steps_with_its_hessian():
    trainer = make(optimizer="sophia-g", precision="bf16", compile=True)
    assert epochs(trainer, 3)[-1]["val_loss"] < 5

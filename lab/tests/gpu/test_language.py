"""Language models on a GPU: captured, compiled, several at once, with the numbers of the CPU."""

from typing import Any

import pytest
import torch

from sgdf_lab.runs import config as configs
from sgdf_lab.training import device as cuda_graphs
from sgdf_lab.training.loop import Trainer, take_turns

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


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


def evaluations(trainer: Trainer, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(count):
        for _ in trainer.epoch():
            pass
        found.append(trainer.metrics())
    return found


def same(first: list[dict[str, Any]], second: list[dict[str, Any]], rel: float = 2e-3) -> None:
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert value == pytest.approx(b[name], rel=rel), name


@pytest.mark.parametrize("name", ["sgdf", "adamw", "sgd", "lion"])
def test_the_numbers_are_the_cpus(name):
    on_gpu = make(optimizer=name)
    same(evaluations(on_gpu, 4), evaluations(make("cpu", optimizer=name), 4), rel=1e-2)
    assert on_gpu.graphs
    assert len(on_gpu.graphs.captured) == 2  # the step and the evaluation


def test_captured_equals_not_captured(monkeypatch):
    captured = evaluations(make(norms=True, accumulate=2), 5)
    monkeypatch.setattr(cuda_graphs, "WARM_UP", 10**9)
    same(captured, evaluations(make(norms=True, accumulate=2), 5))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_compiled_is_near(precision):
    plain = evaluations(make(), 4)
    same(plain, evaluations(make(precision=precision, compile=True), 4), rel=0.03)


def test_trainers_that_take_turns_do_not_disturb_each_other():
    alone = [evaluations(make(seed=seed), 3) for seed in (0, 1)]
    several = [make(seed=seed) for seed in (0, 1)]
    together: list[list[dict[str, Any]]] = [[], []]
    for _ in range(3):
        take_turns([trainer.epoch() for trainer in several])
        for trainer, results in zip(several, together, strict=True):
            results.append(trainer.metrics())
    for first, second in zip(alone, together, strict=True):
        same(first, second)
    assert alone[0][-1]["val_loss"] != alone[1][-1]["val_loss"]


def test_resuming_from_a_checkpoint(tmp_path):
    straight = evaluations(make(), 6)
    broken = make()
    evaluations(broken, 4)
    torch.save(broken.state_dict(), tmp_path / "last.pt")
    again = make()
    again.load_state_dict(torch.load(tmp_path / "last.pt", weights_only=True))
    same(straight[4:], evaluations(again, 2))


def test_sophia_steps_with_its_hessian():
    trainer = make(optimizer="sophia-g", precision="bf16", compile=True)
    assert evaluations(trainer, 3)[-1]["val_loss"] < 5

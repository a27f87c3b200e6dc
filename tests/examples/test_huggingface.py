"""Hugging Face's Trainer and Accelerate: they resume with the same numbers; the Trainer's traps."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from torch.testing import assert_close

from sgdf import SGDF, FilterAdamW

pytestmark = pytest.mark.usefixtures("one_thread")
BITWISE = {"rtol": 0, "atol": 0}


@pytest.fixture
def accelerate_bf16() -> Iterator[ModuleType]:
    pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState

    yield importlib.import_module("examples.accelerate_bf16")
    # Accelerate keeps its settings for the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def huggingface_trainer(accelerate_bf16, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return importlib.import_module("examples.huggingface_trainer")


@pytest.mark.parametrize(("optimizer", "lr"), [(FilterAdamW, 1e-2), (SGDF, 0.5)])
def test_the_trainer_resumes_with_the_same_numbers(
    huggingface_trainer, optimizer, lr, tmp_path: Path
) -> None:
    whole = huggingface_trainer.trainer(str(tmp_path), optimizer, lr=lr)
    whole.train()
    losses = huggingface_trainer.losses_of(whole)
    assert losses[-1] < losses[0] - 0.3
    resumed = huggingface_trainer.trainer(str(tmp_path), optimizer, lr=lr)
    calls = []
    step = resumed.training_step
    resumed.training_step = lambda *args, **kwargs: calls.append(1) or step(*args, **kwargs)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert len(calls) == 12, "it was to train the second half alone"
    assert huggingface_trainer.losses_of(resumed) == losses
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), **BITWISE)


def test_the_trainers_weight_decay_overrides_the_optimizers(
    huggingface_trainer, tmp_path: Path
) -> None:
    trainer = huggingface_trainer.trainer(str(tmp_path), FilterAdamW, weight_decay=0.5)
    groups = trainer.create_optimizer().param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_the_trainer_does_not_pass_its_learning_rate(huggingface_trainer, tmp_path: Path) -> None:
    trainer = huggingface_trainer.trainer(str(tmp_path))
    trainer.optimizer_cls_and_kwargs = (SGDF, {})
    groups = trainer.create_optimizer().param_groups
    assert {group["lr"] for group in groups} == {0.5}
    assert trainer.args.learning_rate == 1e-2


def test_accelerate_resumes_with_the_same_numbers(accelerate_bf16, tmp_path: Path) -> None:
    losses, whole = accelerate_bf16.train(tmp_path / "whole", stop_after=40)
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])
    first, _ = accelerate_bf16.train(tmp_path / "parts", stop_after=20)
    rest, resumed = accelerate_bf16.train(tmp_path / "parts", stop_after=40, resume=True)
    assert first + rest == losses
    assert_close(resumed.state_dict(), whole.state_dict(), **BITWISE)


def test_the_script_of_accelerate_runs(accelerate_bf16) -> None:
    losses = accelerate_bf16.main()
    assert losses[-1] < losses[0]


def test_the_script_of_the_trainer_runs(huggingface_trainer) -> None:
    losses = huggingface_trainer.main()
    assert losses[-1] < losses[0]

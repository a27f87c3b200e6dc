"""Hugging Face's Trainer and Accelerate: they resume with the same numbers; the Trainer's traps."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from torch.testing import assert_close

from sgdf import SGDF, FilterAdamW, FilterMuon, param_groups
from sgdf.integrations.huggingface import optimizer

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


@pytest.mark.parametrize(("kind", "lr"), [(FilterAdamW, 1e-2), (SGDF, 0.5)])
def test_the_trainer_resumes_with_the_same_numbers(
    huggingface_trainer, kind, lr, tmp_path: Path
) -> None:
    whole = huggingface_trainer.trainer(str(tmp_path), kind, lr=lr)
    whole.train()
    losses = huggingface_trainer.losses_of(whole)
    assert losses[-1] < losses[0] - 0.3
    resumed = huggingface_trainer.trainer(str(tmp_path), kind, lr=lr)
    calls = []
    step = resumed.training_step
    resumed.training_step = lambda *args, **kwargs: calls.append(1) or step(*args, **kwargs)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert len(calls) == 12, "it was to train the second half alone"
    assert huggingface_trainer.losses_of(resumed) == losses
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), **BITWISE)


def test_the_trainer_takes_filter_muon_as_an_object(huggingface_trainer, tmp_path: Path) -> None:
    """With groups of its own, of which the Trainer schedules both rates."""
    made = huggingface_trainer.trainer(str(tmp_path))
    groups = param_groups(made.model)
    made = huggingface_trainer.Trainer(
        model=made.model,
        args=made.args,
        train_dataset=made.train_dataset,
        optimizers=(FilterMuon(groups, lr=1e-2, aux_lr=3e-3), None),
    )
    made.train()
    losses = huggingface_trainer.losses_of(made)
    assert losses[-1] < losses[0] - 0.3
    matrices, rest = made.optimizer.param_groups
    assert matrices["matrices"] is True
    assert rest["matrices"] is False
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= {
        name for name, p in made.model.named_parameters() if any(p is q for q in rest["params"])
    }
    assert (matrices["initial_lr"], rest["initial_lr"]) == (1e-2, 3e-3)
    assert matrices["lr"] == rest["lr"] == 0  # the end of the cosine


def test_the_trainers_weight_decay_overrides_the_optimizers(
    huggingface_trainer, tmp_path: Path
) -> None:
    trainer = huggingface_trainer.trainer(str(tmp_path), FilterAdamW, weight_decay=0.5)
    groups = trainer.create_optimizer().param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_the_helper_passes_on_what_the_trainer_does_not(
    huggingface_trainer, tmp_path: Path
) -> None:
    """Else the class's own defaults count, whatever the arguments say."""
    args = huggingface_trainer.TrainingArguments(
        output_dir=str(tmp_path), learning_rate=3e-4, adam_beta1=0.8, adam_beta2=0.95,
        adam_epsilon=1e-6, use_cpu=True,
    )  # fmt: skip
    model = huggingface_trainer.LlamaForCausalLM(huggingface_trainer.TINY)
    for chosen, expected in (
        ((FilterAdamW, {}), (1e-3, (0.9, 0.999), 1e-8, 0.0)),
        (optimizer(args, gain_eps=1e-8), (3e-4, (0.8, 0.95), 1e-6, 1e-8)),
        (optimizer(args, SGDF, eps=0.0), (3e-4, (0.8, 0.95), 0.0, None)),
    ):
        trainer = huggingface_trainer.Trainer(
            model=model, args=args, optimizer_cls_and_kwargs=chosen
        )
        made = trainer.create_optimizer()
        assert type(made) is chosen[0]
        for group in made.param_groups:
            assert tuple(group[n] for n in ("lr", "betas", "eps", "gain_eps")) == expected


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

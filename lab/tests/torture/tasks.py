"""What the runs of the matrix train: tasks, optimizers and formats of state, one row each."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum
from sgdf_lab.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class SmallTask:
    """A run of about a second.

    Args:
        name: in the table.
        words: of the command line after `train`.
        images: training and test images that are generated.
        classes: whether it has classes, which Sophia-G needs.
        shards: whether several processes can share its weights.
        three_epochs: words that make it shorter.
    """

    name: str
    words: tuple[str, ...]
    images: tuple[int, int] = (2048, 512)
    classes: bool = True
    shards: bool = True
    three_epochs: tuple[str, ...] = ("--epochs", "3")


#: To try another task, add a row.
TASKS = {
    task.name: task
    for task in (
        SmallTask(
            "digits", ("digits", "--set", "batch=64", "--epochs", "12"), images=(512, 128)
        ),
        SmallTask(
            "images",
            ("cifar10", "--model", "cnn", "--set", "batch=16", "--epochs", "6"),
            images=(64, 32),
        ),
        SmallTask(
            "language",
            ("text", "--model", "gpt-tiny", "--set", "batch=4", "--set", "context=16", "--set",
             "eval_tokens=256", "--set", "eval_every=2", "--set", "steps=12"),
            three_epochs=("--set", "steps=6"),
        ),
        SmallTask(
            "GAN",
            ("wgan-gp", "--model", "dcgan-tiny", "--set", "batch=8", "--set", "critic_norm=layer",
             "--set", "fid_samples=40", "--set", "fid_every=2", "--set",
             "features=paper.gan_driver:Features", "--epochs", "6"),
            images=(48, 16),
            classes=False,
            shards=False,
        ),
    )
}  # fmt: skip


#: Their default rates are too large for some of the tasks.
FAST = ("schedule-free-sgd", "sgd-nesterov")


def command(task: SmallTask, optimizer: str, *words: str) -> tuple[str, ...]:
    """The command line; learning rates are small enough for every pair to stay finite."""
    lowered = optimizer.startswith("torture.") or optimizer in FAST
    rate = ("--set", "lr=0.01") if lowered else ()
    return (
        "train", *task.words, "--data", "synthetic", "--device", "cpu",
        "--optimizer", optimizer, *rate, *words,
    )  # fmt: skip


# --- formats of state: settings of the lab are JSON, which has no dtypes, so builders hold them ---


def builder(kind: Any, state: torch.dtype) -> Any:
    def build(params: Any, lr: float = 0.01) -> Optimizer:
        made: Optimizer = kind(params, lr, state_dtype=state)
        return made

    return build


def compiled(kind: Any) -> Any:
    """On a CPU the lab compiles nothing, so the optimizer brings a compiled step.

    Its rate is a tensor. A number would be a constant of the first graph that a process compiles,
    so that a resumed process would have another one, and round otherwise: torch's AdamW, too.
    """

    def build(params: Any, lr: float = 0.01) -> Optimizer:
        made: Optimizer = kind(params, torch.tensor(lr), foreach=True)
        made.step = torch.compile(made.step)  # type: ignore[method-assign]
        return made

    return build


sgdf_compiled = compiled(SGDF)
filter_adam_compiled = compiled(FilterAdam)
sgdf_bf16 = builder(SGDF, torch.bfloat16)
sgdf_int8 = builder(SGDF, torch.int8)
filter_adam_bf16 = builder(FilterAdam, torch.bfloat16)
filter_adam_int8 = builder(FilterAdam, torch.int8)
filter_adamw_bf16 = builder(FilterAdamW, torch.bfloat16)
filter_adamw_int8 = builder(FilterAdamW, torch.int8)
momentum_float32 = builder(Momentum, torch.float32)
momentum_bf16 = builder(Momentum, torch.bfloat16)  # Momentum has no 8-bit state

#: Format of the state: the optimizers that keep it so.
FORMATS: dict[str, tuple[str, ...]] = {
    "float32": (*OPTIMIZERS, "torture.tasks.momentum_float32"),
    "float32, compiled step": (
        "torture.tasks.sgdf_compiled",
        "torture.tasks.filter_adam_compiled",
    ),
    "bf16 state": tuple(
        f"torture.tasks.{name}_bf16" for name in ("sgdf", "filter_adam", "filter_adamw", "momentum")
    ),
    "int8 state": tuple(
        f"torture.tasks.{name}_int8" for name in ("sgdf", "filter_adam", "filter_adamw")
    ),
}


def combinations() -> list[tuple[str, SmallTask, str, tuple[str, ...]]]:
    """Every format, task and optimizer that fit together, with the words of the command line."""
    found = []
    for form, names in FORMATS.items():
        for task in TASKS.values():
            for name in names:
                if not task.classes and name in OPTIMIZERS and OPTIMIZERS[name].needs_hessian:
                    continue
                # The tensors of the digits' own network are too small for 8 bits.
                wide = ("--model", "cnn") if form == "int8 state" and task.name == "digits" else ()
                found.append((form, task, name, command(task, name, *wide)))
    return found

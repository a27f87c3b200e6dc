"""Names and defaults that the help shows, without the registries, which import torch.

The names of optimizers, datasets and new tasks are read from the text of their files: one more
needs no edit here. The others are written out. `lab/tests/cli/test_start.py` compares all of them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAB = Path(__file__).parents[1]


def _calls(file: Path) -> Iterator[ast.Call]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The constants among the keyword arguments of each call in a file."""
    for call in _calls(file):
        yield {
            each.arg: each.value.value
            for each in call.keywords
            if each.arg and isinstance(each.value, ast.Constant)
        }


def _optimizers() -> tuple[str, ...]:
    rows = _rows(LAB / "optimizers" / "registry.py")
    return tuple(row["name"] for row in rows if {"name", "about"} <= row.keys())


def _datasets() -> tuple[str, ...]:
    rows = [row for file in (LAB / "data").glob("*.py") for row in _rows(file)]
    found = [(row["order"], row["name"]) for row in rows if {"order", "name"} <= row.keys()]
    return tuple(name for _, name in sorted(found))


def _tasks(written: tuple[str, ...]) -> tuple[str, ...]:
    """Those written out, some of which are made in loops, and every other `Task("NAME", ...)`."""
    names = list(written)
    for file in sorted([*(LAB / "tasks").glob("*.py"), *(LAB / "tasks").glob("*/__init__.py")]):
        for call in _calls(file):
            is_task = isinstance(call.func, ast.Name) and call.func.id == "Task"
            if is_task and call.args and isinstance(call.args[0], ast.Constant):
                names.append(str(call.args[0].value))
    return tuple(dict.fromkeys(names))


TASKS = _tasks((
    *("digits", "fashion-mnist", "cifar10", "cifar100", "voc", "cifar10-fast", "wgan-gp"),
    *("text", "enwik8", "text8", "imagenet", "images"),
    *("finetune-cifar10", "finetune-cifar100", "finetune-pets"),
    *("finetune-flowers102", "finetune-food101", "finetune-imagenet"),
))  # fmt: skip

#: The lab's own classifiers, of small images.
CLASSIFIERS = (
    *("vgg11", "resnet18", "resnet34", "densenet121", "vit-small-cifar", "vit-mini"),
    *("cnn", "mlp"),
)

#: Models of the other tasks, by the tasks that take them.
OTHER_MODELS = {
    "imagenet": (
        *("resnet18", "resnet34", "resnet50", "vgg11-bn", "vgg13-bn", "densenet121"),
        *("densenet161", "resnet-tiny"),
    ),
    "finetune-*": ("vit-b32", "vit-l32", "vit-tiny"),
    "voc": ("fasterrcnn", "fasterrcnn-tiny"),
    "cifar10-fast": ("airbench", "airbench-tiny"),
    "wgan-gp": ("dcgan", "dcgan-tiny"),
    "text, enwik8, text8": ("gpt-tiny", "gpt-mini", "gpt-11m", "gpt-124m"),
}

OPTIMIZERS = _optimizers()

#: Settings of single tasks, for --set.
TASK_SETTINGS = (
    *("augment", "bias_passes", "bias_scale", "classes", "context", "corpus", "critic_norm"),
    *("eval_every", "eval_tokens", "features", "fid_every", "fid_samples", "lists", "lookahead"),
    *("names", "shift", "size", "smoothing", "test_tokens", "tokenizer", "views", "weights"),
)

DATASETS = _datasets()

SEARCHES = ("lr-grid", "budget", "tuned")  # of sgdf sweep --preset
PRECISIONS = ("tf32", "bf16", "fp32")
DATA = ("real", "synthetic")
LONGEST_NAME = 255  # bytes, of a file or folder

# Of sgdf bench step.
LISTS = ("one-tensor", "resnet18", "resnet50", "vit-l", "gpt", "tiny")
DEFAULT_LISTS = {"cpu": LISTS[:3], "cuda": LISTS[2:5]}
CONTESTANTS = (
    *("sgd-fused", "sgd-foreach", "adamw-fused", "adamw-foreach"),
    *("torchao-adamw8bit", "bitsandbytes-adamw8bit"),
    *("sgdf-loop", "sgdf-foreach", "sgdf-fused", "sgdf-fused-constant"),
    *("sgdf-fused-bf16-state", "sgdf-fused-int8-state"),
    *("filteradam-foreach", "filteradam-fused", "filteradam-fused-int8-state"),
    *("filteradamw-fused-derived", "filteradamw-fused-derived-int8-state"),
    *("filteradamw-fused-constant", "wienerfilter-fused", "momentum-fused"),
    *("adamw-fused-bf16", "sgdf-fused-bf16", "sgdf-fused-bf16-random"),
    "filteradamw-fused-derived-bf16-int8-state-random",
)
WITH_TARGETS = "targets"
REPEATS = 30
SECONDS = 2.0

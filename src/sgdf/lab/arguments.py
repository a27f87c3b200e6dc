"""The options of the commands that train. Importing this needs no more than sgdf itself does."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sgdf.lab import config as configs
from sgdf.lab import models, optimizers, tasks
from sgdf.lab.config import Config
from sgdf.lab.errors import LabError, unknown

ENGINES = ("local", "ray")


def add_place(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """The options of every command that trains."""
    add = parser.add_argument
    add("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="default %(default)s")
    add("--data-dir", type=Path, metavar="DIR", help="default $SGDF_DATA or ~/.cache/sgdf/data")
    add("--tensorboard", action="store_true", help="write event files into the runs' folders")
    add("--keep", type=positive, metavar="N", help="keep the weights of every Nth epoch and of the "
        "start, for sgdf analyze")  # fmt: skip
    add("--no-compile", action="store_true", help="on a GPU: start at once, train slower")


def add_engine(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """The options of every command that runs many runs."""
    add = parser.add_argument
    add("--retry", action="store_true", help="run again what failed before")
    add("--jobs", type=positive, metavar="N", help="processes (default: 1 on a GPU, else as cores)")
    add("--together", type=positive, default=3, metavar="N",
        help="with one job on a GPU: runs at once in it (default %(default)s)")  # fmt: skip
    add("--engine", choices=ENGINES, default="local", help="default %(default)s")
    add("--address", metavar="HOST:PORT", help="of the Ray cluster (default: the one found here)")
    add("--cpus-per-run", type=float, default=1.0, metavar="N", help="on Ray (default 1)")
    add("--gpus-per-run", type=float, metavar="N", help="on Ray (default: 1 on cuda, else 0)")


def add_train(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    add = parser.add_argument
    add("task", nargs="?", metavar="TASK", help=f"of {', '.join(tasks.TASKS)}")
    others = (name for task in tasks.TASKS.values() for name in task.models)
    names = ", ".join(dict.fromkeys((*models.NAMES, *others)))
    add("--model", help=f"of {names}, as the task takes them (default: the task's)")
    add("--optimizer", help=f"of {', '.join(optimizers.NAMES)}, or package.Class (default sgdf)")
    add("--seed", type=int, nargs="+", help="several seeds train together (default 0)")
    add("--epochs", type=positive, help="default: the task's")
    add("--precision", choices=configs.PRECISIONS, help="default tf32 (on a CPU float32)")
    add("--data", choices=("real", "synthetic"), help="synthetic: a stand-in of the same shape")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="of the optimizer, of the "
        f"task ({task_options()}), or: batch, schedule, milestones, drop, clip, accumulate, "
        "validation, norms")  # fmt: skip
    add("--config", type=Path, metavar="FILE", help="any of these in a TOML file")
    add("--shard", action="store_true", help="under torchrun: each process keeps its share of the "
        "weights (FSDP2)")  # fmt: skip
    add_place(parser, positive)


def task_options() -> str:
    names = {name for task in tasks.TASKS.values() for name in task.options}
    return ", ".join(sorted(names))


WORDS = ("task", "model", "optimizer", "seed", "epochs", "precision", "data")


def configs_from(options: argparse.Namespace) -> list[Config]:
    """A run for every seed; the command line goes before the file."""
    said: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    if options.config:
        said = configs.read_toml(options.config)
        overrides = said.pop("set", {})
        for name in said:
            if name not in WORDS:
                raise unknown(f"setting in {options.config}:", name, (*WORDS, "set"))
    said |= {n: getattr(options, n) for n in WORDS if getattr(options, n) is not None}
    overrides |= dict(map(configs.parse_setting, options.set))
    if "task" not in said:
        raise LabError(f"which task? There are {', '.join(tasks.TASKS)}")
    seeds = said.pop("seed", 0)
    return [
        configs.make(**said, seed=seed, overrides=overrides)
        for seed in (seeds if isinstance(seeds, list) else [seeds])
    ]


def add_reproduce(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a table or figure (default: show which there are)")
    add("--only", nargs="+", metavar="OPTIMIZER", help="default: all of the table")
    add("--seeds", type=int, nargs="+", help="default: the paper's")
    add("--epochs", type=positive, help="default: the paper's")
    add("--precision", choices=configs.PRECISIONS, default="tf32", help="default %(default)s")
    add("--data", choices=("real", "synthetic"), default="real", help="default %(default)s")
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="for all of its runs, as in sgdf train")  # fmt: skip
    add_engine(parser, positive)
    add_place(parser, positive)

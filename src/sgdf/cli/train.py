"""`sgdf train`: train a model on a task, or resume a run."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from sgdf.cli.options import Commands, add_run_options, context_from, find_device, path, positive
from sgdf.lab import models, optimizers, tasks
from sgdf.lab.runs import config as configs
from sgdf.lab.runs.config import Config
from sgdf.lab.runs.parse import parse_setting, read_toml
from sgdf.support.errors import UserError, unknown

#: Options that a TOML file may have too.
IN_FILE = ("task", "model", "optimizer", "seed", "epochs", "precision", "data")


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("train", help="train a model on a task; a killed run resumes")
    add = parser.add_argument
    add("task", nargs="?", metavar="TASK", help=f"one of {', '.join(tasks.TASKS)}")
    add("--model", help=f"one of {model_names()}, as the task allows, for images any "
        "classifier of torchvision, or package.module:function (default: the task's)")  # fmt: skip
    names = ", ".join(optimizers.OPTIMIZERS)
    add("--optimizer", help=f"one of {names}, or package.Class (default sgdf); wiener-NAME filters "
        "the gradients of any of them (settings filter_gain_scale, filter_betas, ...)")  # fmt: skip
    add("--seed", type=int, nargs="+", help="one or more, a run for each (default 0)")
    add("--epochs", type=positive, help="default: the task's")
    add("--precision", choices=configs.PRECISIONS, help="default tf32 (on a CPU float32)")
    add("--data", choices=configs.DATA,
        help="synthetic: generated data of the same shape (default real)")  # fmt: skip
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help=f"a setting of the optimizer, of the task ({task_options()}), or of the run (batch, "
        "schedule, milestones, drop, warmup, decay, clip, accumulate, validation, norms; of text, "
        "in the place of epochs, steps or tokens)")  # fmt: skip
    add("--config", type=path, metavar="FILE", help="a TOML file with any of the options above")
    add("--shard", action="store_true",
        help="under torchrun: split the weights among the processes (FSDP2)")  # fmt: skip
    add_run_options(parser)
    parser.set_defaults(run=run)


def model_names() -> str:
    others = (name for task in tasks.TASKS.values() for name in task.models)
    return ", ".join(dict.fromkeys((*models.NAMES, *others)))


def task_options() -> str:
    names = {name for task in tasks.TASKS.values() for name in task.options}
    return ", ".join(sorted(names - {"fingerprint"}))


def configs_from(options: argparse.Namespace) -> list[Config]:
    """A run for every seed; the command line overrides the file."""
    given: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    if options.config:
        given = read_toml(options.config)
        overrides = given.pop("set", {})
        if not isinstance(overrides, dict):
            raise UserError(f"{options.config}: set is a table: write [set] above its settings")
        for name in given:
            if name not in IN_FILE:
                raise unknown(f"setting in {options.config}:", name, (*IN_FILE, "set"))
    given |= {n: getattr(options, n) for n in IN_FILE if getattr(options, n) is not None}
    overrides |= dict(map(parse_setting, options.set))
    if "task" not in given:
        raise UserError(f"which task? There are {', '.join(tasks.TASKS)}")
    seeds = given.pop("seed", 0)
    if seeds == []:
        raise UserError("seed is an integer or a list of them, not []")
    return [
        configs.with_data(configs.make(**given, seed=seed, overrides=overrides), options.data_dir)
        for seed in (seeds if isinstance(seeds, list) else [seeds])
    ]


def run(options: argparse.Namespace) -> None:
    from sgdf.lab.runs.training import train_in
    from sgdf.lab.train import distributed

    runs = configs_from(options)
    with distributed.joined(find_device(options.device), shard=options.shard) as (team, device):
        context = context_from(options, device)
        results = train_in(context, runs, team)
    show(runs, results, context.out, quiet=team.rank > 0)


def show(runs: list[Config], results: list[dict[str, Any]], out: Path, *, quiet: bool) -> None:
    """Print how every run ended, and where it is."""
    from rich.console import Console

    from sgdf.lab.runs.results import outcome

    console = Console(quiet=quiet)
    for config, result in zip(runs, results, strict=True):
        where = shlex.quote(str(out / config.name))
        console.print(f"{outcome(config, result)}\n  in {where}", soft_wrap=True, markup=False)
    failed = sum(result["status"] == "failed" for result in results)
    if failed:
        raise UserError(f"{failed} of {len(results)} runs failed: the same command resumes them")

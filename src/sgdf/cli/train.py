"""`sgdf train`: train a model on a task, or resume a run."""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf.cli.options import Commands, add_place, place_from, positive
from sgdf.lab import models, optimizers, tasks
from sgdf.lab.runs import config as configs
from sgdf.lab.runs.config import Config
from sgdf.support.errors import UserError, unknown

if TYPE_CHECKING:
    from rich.console import Console

#: Options that a TOML file may have too.
IN_FILE = ("task", "model", "optimizer", "seed", "epochs", "precision", "data")


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("train", help="train a model on a task; a killed run resumes")
    add = parser.add_argument
    add("task", nargs="?", metavar="TASK", help=f"of {', '.join(tasks.TASKS)}")
    others = (name for task in tasks.TASKS.values() for name in task.models)
    names = ", ".join(dict.fromkeys((*models.NAMES, *others)))
    add("--model", help=f"of {names}, as the task takes them (default: the task's)")
    add(
        "--optimizer",
        help=f"of {', '.join(optimizers.OPTIMIZERS)}, or package.Class (default sgdf)",
    )
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
    add_place(parser)
    parser.set_defaults(run=run)


def task_options() -> str:
    names = {name for task in tasks.TASKS.values() for name in task.options}
    return ", ".join(sorted(names))


def configs_from(options: argparse.Namespace) -> list[Config]:
    """A run for every seed; the command line overrides the file."""
    said: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    if options.config:
        said = configs.read_toml(options.config)
        overrides = said.pop("set", {})
        for name in said:
            if name not in IN_FILE:
                raise unknown(f"setting in {options.config}:", name, (*IN_FILE, "set"))
    said |= {n: getattr(options, n) for n in IN_FILE if getattr(options, n) is not None}
    overrides |= dict(map(configs.parse_setting, options.set))
    if "task" not in said:
        raise UserError(f"which task? There are {', '.join(tasks.TASKS)}")
    seeds = said.pop("seed", 0)
    return [
        configs.make(**said, seed=seed, overrides=overrides)
        for seed in (seeds if isinstance(seeds, list) else [seeds])
    ]


def run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from sgdf.lab.runs.session import find_device, train
    from sgdf.lab.train import distributed

    wanted = configs_from(options)
    with distributed.joined(find_device(options.device), shard=options.shard) as (team, device):
        place = replace(place_from(options), device=device)
        console = Console(quiet=team.rank > 0)
        # A GPU has room for several runs at once, a CPU or a team has not.
        side_by_side = device.type == "cuda" and team.size == 1
        results: list[dict[str, Any]] = []
        for group in [wanted] if side_by_side else [[config] for config in wanted]:
            results += train(group, place, console, team)
    show(wanted, results, place.out, console)


def show(
    wanted: list[Config], results: list[dict[str, Any]], out: Path, console: "Console"
) -> None:
    """How every run ended, and where it is."""
    from sgdf.lab.runs.session import outcome

    for config, result in zip(wanted, results, strict=True):
        where = shlex.quote(str(out / config.name))
        console.print(f"{outcome(config, result)}\n  in {where}", soft_wrap=True, markup=False)
    failed = sum(result["status"] == "failed" for result in results)
    if failed:
        raise UserError(f"{failed} of {len(results)} runs failed: the same command resumes them")

"""`sgdf sweep`: run a grid of settings and seeds, here or on Ray."""

import argparse
from pathlib import Path

from sgdf.cli.options import Commands, add_engine, add_place, positive
from sgdf.lab import models, tasks
from sgdf.lab.runs import config as configs
from sgdf.lab.runs.config import Config
from sgdf.lab.sweeps import plan
from sgdf.lab.sweeps.plan import Sweep
from sgdf.support.errors import UserError


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("sweep", help="run a grid of settings and seeds, here or on Ray")
    add = parser.add_argument
    add("file", nargs="?", type=Path, metavar="FILE.toml", help="the grid, as in docs/sweeps.md")
    add("--preset", metavar="NAME", help=f"instead of a file: {' or '.join(plan.PRESETS)}")
    add("--task", help=f"of {', '.join(tasks.TASKS)} (default: the file's)")
    add("--model", help=f"of {', '.join(models.NAMES)} (default: the file's, or the task's)")
    add("--epochs", type=positive, help="default: the file's, or the task's")
    add("--seeds", type=int, nargs="+", metavar="SEED", help="default: the file's, or 0")
    add("--precision", choices=configs.PRECISIONS, help="default: the file's, or tf32")
    add("--data", choices=("real", "synthetic"), help="default: the file's, or real")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="for all cells")
    add("--list", action="store_true", help="print the runs, and run none")
    add_engine(parser)
    add_place(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    planned = sweep_from(options)
    if options.list:
        print(*map(line_of, planned.configs), sep="\n")
        return
    from sgdf.cli import comparison

    comparison.run(planned, options)


def sweep_from(options: argparse.Namespace) -> Sweep:
    names = ("task", "model", "epochs", "seeds", "precision", "data")
    said = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    if options.set:
        said["set"] = dict(map(configs.parse_setting, options.set))
    if bool(options.file) == bool(options.preset):
        raise UserError(f"give a sweep file, or --preset of {', '.join(plan.PRESETS)}")
    if options.preset:
        return plan.preset(options.preset, said)
    return plan.read(options.file, said)


def line_of(config: Config) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in config.settings.items())
    return (
        f"{config.task} {config.model} {config.optimizer} seed {config.seed}, "
        f"{config.epochs} epochs, {settings}"
    )

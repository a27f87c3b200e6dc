"""`sgdf sweep`: train a grid of settings and seeds, on this machine or on Ray."""

import argparse
from typing import TYPE_CHECKING

from sgdf_lab.cli.options import (
    Commands,
    Options,
    add_run_options,
    add_sweep_options,
    engine_from,
    path,
    positive,
    sweep_context_from,
)
from sgdf_lab.registry.tasks import TASKS
from sgdf_lab.runs.config import DATA, PRECISIONS
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps.presets import PRESET_NAMES as SEARCHES

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config
    from sgdf_lab.sweeps.plan import Sweep


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "sweep", help="train a grid of settings and seeds, on this machine or on Ray"
    )
    add_plan_options(parser)
    parser.add_argument("--list", action="store_true", help="print the runs without training them")
    add_sweep_options(parser)
    add_precision(add_run_options(parser))
    parser.set_defaults(run=run)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """The options that decide which runs a sweep has."""
    add = parser.add_argument
    add("file", nargs="?", type=path, metavar="FILE.toml", help="the grid (see docs/sweeps.md)")
    add("--preset", metavar="NAME", help=f"instead of a file: {' or '.join(SEARCHES)}")
    add("--trials", type=positive, metavar="N",
        help="settings to try of each optimizer; its best then runs with all seeds")  # fmt: skip
    add("--finalists", type=positive, metavar="N",
        help="choose the setting by several seeds of so many of the best trials")  # fmt: skip
    add("--task", help=f"one of {', '.join(TASKS)} (default: the file's)")
    add("--model", help="default: the file's, or the task's (sgdf train --help lists them)")
    add("--epochs", type=positive, help="default: the file's, or the task's")
    add("--seeds", type=int, nargs="+", metavar="SEED", help="default: the file's, or 0")
    add("--data", choices=DATA, help="default: the file's, or real")
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting for all cells, as in sgdf train")  # fmt: skip


def add_precision(parser: Options) -> None:
    parser.add_argument("--precision", choices=PRECISIONS, help="default: the file's, or tf32")


def run(options: argparse.Namespace) -> None:
    sweep = sweep_from(options)
    if options.list:
        print_plan(sweep, options)
        return
    from sgdf_lab.cli import comparison

    comparison.run(sweep, options)


def print_plan(sweep: "Sweep", options: argparse.Namespace) -> None:
    """Every run that is known, what is searched, the number of runs of all stages, and the time."""
    print(*map(line_of, sweep.configs), sep="\n")
    from sgdf_lab.sweeps.execute import estimate
    from sgdf_lab.sweeps.plan import Tuned, lines_of_search, stage_sizes

    if isinstance(sweep, Tuned):
        print(*lines_of_search(sweep), sep="\n")
    sizes = stage_sizes(sweep)
    parts = ", ".join(f"{size:,} {words}" for words, size in sizes.items())
    total = f": {sum(sizes.values()):,} runs" if len(sizes) > 1 else ""
    print(f"{parts}{total}")
    print(estimate(sweep, sweep_context_from(options), engine_from(options)))


def sweep_from(options: argparse.Namespace) -> "Sweep":
    if bool(options.file) == bool(options.preset):
        raise UserError(f"give a sweep file, or --preset {' or '.join(SEARCHES)}")
    from sgdf_lab.runs.config import parse_setting
    from sgdf_lab.sweeps.plan import sweep_from_file
    from sgdf_lab.sweeps.presets import sweep_from_preset

    names = ("task", "model", "epochs", "seeds", "precision", "data", "trials", "finalists")
    given = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    if options.set:
        given["set"] = dict(map(parse_setting, options.set))
    if options.preset:
        return sweep_from_preset(options.preset, given)
    return sweep_from_file(options.file, given)


def line_of(config: "Config") -> str:
    settings = ", ".join(f"{name} {value}" for name, value in config.settings.items())
    return (
        f"{config.task} {config.model} {config.optimizer} seed {config.seed}, "
        f"{config.length}, {settings}"
    )

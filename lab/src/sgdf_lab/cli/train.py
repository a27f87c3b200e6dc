"""`sgdf train`: train a model on a task, or resume a run."""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.options import (
    Commands,
    add_run_options,
    context_from,
    examples,
    listed,
    listed_by,
    open_console,
    path,
    positive,
    say,
)
from sgdf_lab.registry.models import CLASSIFIERS
from sgdf_lab.registry.optimizers import OPTIMIZERS
from sgdf_lab.registry.tasks import TASKS
from sgdf_lab.runs.config import DATA, PRECISIONS
from sgdf_lab.support.errors import UserError, unknown

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

#: Options that a TOML file may have too.
IN_FILE = ("task", "model", "optimizer", "seed", "epochs", "precision", "data")

WHICH_TASK = f"which task? There are {', '.join(TASKS)}"

SETTINGS = {
    "the optimizer": ("lr, weight_decay, betas, ... as its class names them",),
    "the run": (
        *("batch", "schedule", "milestones", "drop", "warmup", "decay", "clip", "accumulate"),
        *("validation", "norms; for text steps or tokens instead of epochs"),
    ),
    "single tasks": tuple(
        sorted({name for task in TASKS.values() for name in task.options} - {"fingerprint"})
    ),
}


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model on a task; a killed run resumes",
        description="Train a model on a task. Typed again, the same command resumes a run that\n"
        "was stopped, and shows the result of one that is finished.",
        epilog=names_and_examples(),
    )
    add_what(parser.add_argument_group("what is trained").add_argument)
    add = add_run_options(parser).add_argument
    add("--precision", choices=PRECISIONS, help="default tf32 (on a CPU float32)")
    add("--shard", action="store_true",
        help="under torchrun: split the weights among the processes (FSDP2)")  # fmt: skip
    parser.set_defaults(run=run)


def add_what(add: Callable[..., Any]) -> None:
    add("task", nargs="?", metavar="TASK", help="one of the tasks below")
    add("--model", metavar="NAME", help="one of the models below, for images any classifier of "
        "torchvision, or package.module:function (default: the task's)")  # fmt: skip
    add("--optimizer", metavar="NAME", help="one of the optimizers below, or package.Class "
        "(default sgdf); wiener-NAME filters the gradients of any of them (settings "
        "filter_gain_scale, filter_betas, ...)")  # fmt: skip
    add("--seed", type=int, nargs="+", metavar="N",
        help="one or more, a run for each (default 0)")  # fmt: skip
    add("--epochs", type=positive, metavar="N", help="default: the task's")
    add("--data", choices=DATA,
        help="synthetic: generated data of the same shape (default real)")  # fmt: skip
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the optimizer, of the task or of the run; may be repeated")  # fmt: skip
    add(
        "--config",
        type=path,
        metavar="FILE",
        help="a TOML file with any of these options, and precision",
    )


def names_and_examples() -> str:
    models: dict[tuple[str, ...], list[str]] = {tuple(CLASSIFIERS): ["small images"]}
    for task in TASKS.values():
        if task.models:
            kind = "finetune-*" if task.name.startswith("finetune-") else task.name
            models.setdefault(task.models, []).append(kind)
    by_task = {", ".join(dict.fromkeys(tasks)): names for names, tasks in models.items()}
    return "\n\n".join(
        (
            listed("tasks", TASKS),
            listed_by("models", by_task),
            listed("optimizers", OPTIMIZERS),
            listed_by("settings, for --set", SETTINGS),
            examples(
                ("sgdf train digits", "SGDF on handwritten digits: seconds on a CPU"),
                (
                    "sgdf train cifar10 --optimizer adamw --set lr=1e-3 --seed 0 1 2",
                    "another optimizer, its rate, three runs",
                ),
                (
                    "sgdf train images --data-dir photos --model resnet50 --epochs 5",
                    "your own photographs, a folder per class",
                ),
                ("sgdf report runs", "compare the runs, in a table and on a page"),
            ),
        )
    )


def configs_from(options: argparse.Namespace) -> "list[Config]":
    """A run for every seed; the command line overrides the file."""
    if not options.task and not options.config:
        raise UserError(WHICH_TASK)
    from sgdf_lab.runs import config as configs
    from sgdf_lab.runs.config import parse_setting, read_toml

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
        raise UserError(WHICH_TASK)
    seeds = given.pop("seed", 0)
    if seeds == []:
        raise UserError("seed is an integer or a list of them, not []")
    return [
        configs.with_data(configs.make(**given, seed=seed, overrides=overrides), options.data_dir)
        for seed in (seeds if isinstance(seeds, list) else [seeds])
    ]


def run(options: argparse.Namespace) -> None:
    runs = configs_from(options)
    from sgdf_lab.runs.session import time_in_words, train_in_turn
    from sgdf_lab.support.numerics import find_device
    from sgdf_lab.training import distributed

    with distributed.process_group(find_device(options.device), shard=options.shard) as (
        team,
        device,
    ):
        context = context_from(options, device)
        console = open_console(quiet=team.rank > 0)
        if console.is_terminal:  # every line of a log names its run already
            say(console, plan_in_words(runs, device, context.out))
        if device.type == "cpu" and team.size == 1 and (words := time_in_words(runs, context)):
            say(console, words)
        results = train_in_turn(runs, context, team)
    show(runs, results, context.out, quiet=team.rank > 0)


def plan_in_words(runs: "list[Config]", device: object, out: Path) -> str:
    first = runs[0]
    seeds = f"seed {first.seed}" if len(runs) == 1 else f"{len(runs)} seeds"
    what = f"{first.task}, {first.model}, {first.optimizer}, lr {first.lr:g}, {seeds}"
    length = first.length.removesuffix("s") if first.length.startswith("1 ") else first.length
    return f"Training {what}, {length} on {device}; written to {out}"


def show(runs: "list[Config]", results: list[dict[str, Any]], out: Path, *, quiet: bool) -> None:
    """Print how every run ended, and where it is."""
    from sgdf_lab.runs.results import outcome

    console = open_console(quiet=quiet)
    for config, result in zip(runs, results, strict=True):
        where = shlex.quote(str(out / config.name))
        say(console, outcome(config, result))
        say(console, f"  in {where}")
    failed = sum(result["status"] == "failed" for result in results)
    if failed:
        raise UserError(f"{failed} of {len(results)} runs failed: the same command resumes them")
    say(console, f"sgdf report {shlex.quote(str(out))} compares the runs there")

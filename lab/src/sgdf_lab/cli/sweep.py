"""`sgdf sweep`, `sgdf reproduce` and `sgdf demo`: train many runs and compare them."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab import api
from sgdf_lab.cli.options import (
    Commands,
    Options,
    add_run_options,
    context_from,
    number,
    open_console,
    path,
    positive,
    say,
)
from sgdf_lab.registry.tasks import TASKS
from sgdf_lab.runs.config import DATA, PRECISIONS
from sgdf_lab.support.errors import UserError, unknown, visible
from sgdf_lab.support.tables import Column, as_rich
from sgdf_lab.sweeps import ENGINES
from sgdf_lab.sweeps.presets import PRESET_NAMES as SEARCHES

if TYPE_CHECKING:
    from rich.console import Console

    from sgdf_lab.runs.config import Config
    from sgdf_lab.runs.session import RunContext
    from sgdf_lab.sweeps.execute import Engine
    from sgdf_lab.sweeps.plan import Grid, Sweep


# --- sgdf sweep ----------------------------------------------------------------------------------


def add_sweep(commands: Commands) -> None:
    parser = commands.add_parser(
        "sweep", help="train a grid of settings and seeds, on this machine or on Ray"
    )
    add_plan_options(parser)
    parser.add_argument("--list", action="store_true", help="print the runs without training them")
    add_sweep_options(parser)
    add_precision(add_run_options(parser))
    parser.set_defaults(run=run_sweep_command)


def run_sweep_command(options: argparse.Namespace) -> None:
    sweep = sweep_from(options)
    if options.list:
        print_plan(sweep, options)
    else:
        run_and_show(sweep, options)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """The options that decide which runs a sweep has."""
    add = parser.add_argument
    add("file", nargs="?", type=path, metavar="FILE.toml", help="the grid (see docs/sweeps.md)")
    add("--preset", metavar="NAME", help=f"instead of a file: {' or '.join(SEARCHES)}")
    add("--trials", type=positive, metavar="N",
        help="settings to try of each optimizer; its best then runs with all seeds")  # fmt: skip
    add("--finalists", type=positive, metavar="N",
        help="choose the setting by several seeds of the N best trials")  # fmt: skip
    add("--task", help=f"one of {', '.join(TASKS)} (default: the file's)")
    add("--model", help="default: the file's, or the task's (sgdf train --help lists them)")
    add("--epochs", type=positive, help="default: the file's, or the task's")
    add("--seeds", type=int, nargs="+", metavar="SEED", help="default: the file's, or 0")
    add("--data", choices=DATA, help="default: the file's, or real")
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting for all cells, as in sgdf train")  # fmt: skip


def add_precision(parser: Options) -> None:
    parser.add_argument("--precision", choices=PRECISIONS, help="default: the file's, or tf32")


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
    if options.preset and options.preset not in SEARCHES:
        raise unknown("preset", options.preset, SEARCHES)
    from sgdf_lab.runs.config import parse_setting

    names = ("task", "model", "epochs", "seeds", "precision", "data", "trials", "finalists")
    given = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    if options.set:
        given["set"] = dict(map(parse_setting, options.set))
    return api.planned(options.preset or options.file, given)


def line_of(config: "Config") -> str:
    settings = ", ".join(f"{name} {value}" for name, value in config.settings.items())
    return (
        f"{config.task} {config.model} {config.optimizer} seed {config.seed}, "
        f"{config.length}, {settings}"
    )


# --- sgdf reproduce ------------------------------------------------------------------------------


def add_reproduce(commands: Commands) -> None:
    parser = commands.add_parser("reproduce", help="repeat a table or figure of the paper")
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a table or figure (default: list them)")
    add("--only", nargs="+", metavar="OPTIMIZER", help="these only (default: all)")
    add("--seeds", type=int, nargs="+", help="default: the paper's")
    add("--epochs", type=positive, help="default: the paper's")
    add("--data", choices=DATA, default="real", help="default %(default)s")
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting for all runs, as in sgdf train")  # fmt: skip
    add_sweep_options(parser)
    add_run_options(parser).add_argument(
        "--precision", choices=PRECISIONS, default="tf32", help="default %(default)s"
    )
    parser.set_defaults(run=run_reproduce)


def run_reproduce(options: argparse.Namespace) -> None:
    if options.name is None:
        show_presets()
        return
    from sgdf_lab.runs.config import parse_setting
    from sgdf_lab.sweeps.presets import sweep_from_paper

    sweep = sweep_from_paper(
        options.name,
        only=options.only,
        seeds=options.seeds,
        epochs=options.epochs,
        precision=options.precision,
        data=options.data,
        overrides=dict(map(parse_setting, options.set)),
    )
    run_and_show(sweep, options)


def show_presets() -> None:
    """List the presets with their sizes."""
    from sgdf_lab import paper

    columns = [Column("name", "label"), Column("what", "text")]
    columns += map(Column, ("settings", "seeds", "epochs"))
    rows = [
        [preset.name, preset.title]
        + [str(count) for count in (len(preset.cells), len(preset.seeds), preset.epochs)]
        for preset in paper.PRESETS.values()
    ]
    console = open_console()
    title = "The paper's tables and figures"
    console.print(as_rich(columns, rows, console.width, title=title))
    say(console, "\nsgdf reproduce NAME trains the runs behind one of them.")


# --- sgdf demo -----------------------------------------------------------------------------------


def add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="a small GPT learns to write Python, by several optimizers",
        description="Train a small GPT on the source of Python's standard library by several\n"
        "optimizers, and show their losses, steps, time and memory, and what the models\nwrite.",
    )
    parser.add_argument("--steps", type=positive, help="steps per run (default 120)")
    parser.add_argument(
        "--digits", action="store_true", help="compare four on handwritten digits instead"
    )
    parser.add_argument("--epochs", type=positive, help="epochs per run of --digits (default 20)")
    add_sweep_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=run_demo, out=Path("runs", "demo"))


def run_demo(options: argparse.Namespace) -> None:
    from sgdf_lab.reports import demo as report
    from sgdf_lab.sweeps import demo
    from sgdf_lab.sweeps.execute import refuse_team

    if options.digits:
        if options.steps:
            raise UserError("--steps is of the GPT; the digits are trained by --epochs")
        run_and_show(demo.digits_sweep(options.epochs or demo.EPOCHS), options)
        return
    if options.epochs:
        raise UserError("--epochs is of the digits: add --digits, or give --steps")
    if options.no_checkpoints:
        raise UserError("the demo shows what its models write: leave --no-checkpoints out")
    refuse_team()
    corpus = demo.write_corpus(options.out / "stdlib.txt")
    sweep = demo.gpt_sweep(corpus, options.steps or demo.STEPS)
    run_and_show(sweep, options, report.show)


# --- what they share -----------------------------------------------------------------------------


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that trains many runs."""
    add = parser.add_argument_group("many runs").add_argument
    add("--retry", action="store_true", help="train runs again that failed before")
    add("--record", type=path, metavar="FILE.jsonl", help="keep every ended run in this file as "
        "well, and train none again that is in it")  # fmt: skip
    add("--jobs", type=positive, metavar="N",
        help="worker processes (default: 1 on a GPU, one per core on a CPU)")  # fmt: skip
    add("--together", type=positive, metavar="N",
        help="with one job: runs side by side in it (default: 3 on a GPU)")  # fmt: skip
    add("--engine", choices=ENGINES, default="local",
        help="this machine or a Ray cluster (default %(default)s)")  # fmt: skip
    add("--address", metavar="HOST:PORT",
        help="the Ray cluster (default: the one on this machine)")  # fmt: skip
    add("--cpus-per-run", type=number, default=1.0, metavar="N",
        help="CPUs that Ray reserves (default 1)")  # fmt: skip
    add("--gpus-per-run", type=number, metavar="N",
        help="GPUs that Ray reserves (default: 1 with --device cuda, else 0)")  # fmt: skip


def sweep_context_from(options: argparse.Namespace) -> "RunContext":
    return context_from(options, engine_from(options).device(options.device))


def engine_from(options: argparse.Namespace) -> "Engine":
    from sgdf_lab.sweeps.execute import Engine

    return Engine(
        options.engine,
        options.jobs,
        options.together,
        options.address,
        options.cpus_per_run,
        options.gpus_per_run,
    )


def run_and_show(
    sweep: "Sweep",
    options: argparse.Namespace,
    show: "Callable[[Grid, Path, Console], None] | None" = None,
) -> None:
    """Run everything; show each stage when it has ended or is interrupted."""
    from sgdf_lab.sweeps.execute import run_sweep

    context, console, show = sweep_context_from(options), open_console(), show or show_stage
    results = run_sweep(
        sweep,
        context,
        engine_from(options),
        retry=options.retry,
        record=options.record,
        console=console,
        show=lambda stage: show(stage, context.out, console),
    )
    if failed := sum(result["status"] == "failed" for result in results):
        raise UserError(f"{failed} of {len(results)} runs failed; --retry tries them again")


def show_stage(sweep: "Grid", out: Path, console: "Console") -> None:
    """Print the tables, and write the page beside the runs."""
    from sgdf_lab.reports import page, tables

    records, comparisons, skipped = page.write_stage(sweep, out)
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not records:
        return
    console.print(f"\n{visible(sweep.title)}\n", style="bold", markup=False, highlight=False)
    tables.show_comparisons(console, comparisons)
    if sweep.note:
        say(console, sweep.note)
    say(console, f"The runs are in {visible(out)}")
    say(console, f"The page is in {visible(page.page_of(sweep, out))}")

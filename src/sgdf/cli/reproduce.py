"""`sgdf reproduce`: run a table or figure of the paper again."""

import argparse

from sgdf.cli.options import Commands, add_engine, add_place, positive
from sgdf.lab.runs import config as configs


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("reproduce", help="run a table or figure of the paper again")
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a table or figure (default: show which there are)")
    add("--only", nargs="+", metavar="OPTIMIZER", help="default: all of the table")
    add("--seeds", type=int, nargs="+", help="default: the paper's")
    add("--epochs", type=positive, help="default: the paper's")
    add("--precision", choices=configs.PRECISIONS, default="tf32", help="default %(default)s")
    add("--data", choices=("real", "synthetic"), default="real", help="default %(default)s")
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="for all of its runs, as in sgdf train")  # fmt: skip
    add_engine(parser)
    add_place(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    if options.name is None:
        show_presets()
        return
    from sgdf.cli import comparison
    from sgdf.lab.sweeps import reproduce

    sweep = reproduce.sweep_of(
        options.name,
        only=options.only,
        seeds=options.seeds,
        epochs=options.epochs,
        precision=options.precision,
        data=options.data,
        overrides=dict(map(configs.parse_setting, options.set)),
    )
    comparison.run(sweep, options)


def show_presets() -> None:
    """What can be asked for, and how much of it there is."""
    from rich.console import Console
    from rich.table import Table

    from sgdf.lab import paper

    shown = Table(title="sgdf reproduce NAME: the paper's tables and figures")
    for column in ("name", "what"):
        shown.add_column(column)
    for column in ("settings", "seeds", "epochs"):
        shown.add_column(column, justify="right")
    for preset in paper.PRESETS.values():
        counts = len(preset.cells), len(preset.seeds), preset.epochs
        shown.add_row(preset.name, preset.title, *map(str, counts))
    Console().print(shown)

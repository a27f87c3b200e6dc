"""`sgdf reproduce`: train the runs behind a table or figure of the paper."""

import argparse

from sgdf_lab.cli.options import (
    Commands,
    add_run_options,
    add_sweep_options,
    open_console,
    positive,
    say,
)
from sgdf_lab.runs.config import DATA, PRECISIONS
from sgdf_lab.support.tables import Column, as_rich


def add_to(commands: Commands) -> None:
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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    if options.name is None:
        show_presets()
        return
    from sgdf_lab.cli import comparison
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
    comparison.run(sweep, options)


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

"""`sgdf report`: tables and one page of curves from finished runs."""

import argparse
from pathlib import Path

from sgdf.cli.options import Commands, say
from sgdf.support.errors import UserError


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("report", help="tables and one page of curves from finished runs")
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs, or of many of them")
    add("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
        help="the page (default %(default)s)")  # fmt: skip
    add("--title", default="Comparison of optimizers", help='default "%(default)s"')
    add("--figure", type=Path, metavar="STEM", help="also draw the curves as STEM.png and "
        "STEM.svg, and over the learning rate as STEM-lr")  # fmt: skip
    add("--target", type=float, metavar="ACC", help="test accuracy in percent to time the way to "
        "(default: one that all reach)")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Show the runs in the terminal, and write the page."""
    from rich.console import Console

    from sgdf.report import page, records, tables

    console = Console()
    found, skipped = records.read(options.runs)
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not found:
        places = ", ".join(records.visible(place) for place in options.runs)
        raise UserError(f"there are no runs in {places}: `sgdf train` makes some")
    planned = records.planned(options.runs)
    comparisons = tables.build(found, planned=planned, target=options.target)
    for comparison in comparisons:
        console.print(tables.as_rich(comparison, console.width), highlight=False)
        console.print()
    if options.figure:
        from sgdf.report import static

        files = static.write_all(comparisons, options.figure)
        for file in files:
            say(console, f"A figure is in {records.visible(file)}")
        if not files:
            say(console, "No run has finished an epoch: there is nothing to draw a figure of")
    page.write(
        found,
        options.output,
        title=options.title,
        planned=planned,
        target=options.target,
        skipped=skipped,
    )
    say(console, f"The page is in {records.visible(options.output)}")

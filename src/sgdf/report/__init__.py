"""Comparisons people can see: tables in the terminal, and one page with tables and charts.

Importing this needs no more than sgdf itself does.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sgdf report`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs, or of many of them")
    add("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
        help="the page (default %(default)s)")  # fmt: skip
    add("--title", default="Comparison of optimizers", help='default "%(default)s"')
    add("--target", type=float, metavar="ACC", help="test accuracy in percent to time the way to "
        "(default: one that all reach)")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Show the runs in the terminal, and write the page."""
    from rich.console import Console

    from sgdf.lab.errors import LabError
    from sgdf.report import page, records, tables

    console = Console()
    found, skipped = records.read(options.runs)
    for complaint in skipped:
        console.print(f"skipped: {complaint}", markup=False, highlight=False, soft_wrap=True)
    if not found:
        places = ", ".join(records.visible(place) for place in options.runs)
        raise LabError(f"there are no runs in {places}: `sgdf train` makes some")
    planned = records.planned(options.runs)
    for comparison in tables.build(found, planned=planned, target=options.target):
        console.print(tables.as_rich(comparison, console.width), highlight=False)
        console.print()
    page.write(
        found,
        options.output,
        title=options.title,
        planned=planned,
        target=options.target,
        skipped=skipped,
    )
    console.print(
        f"The page is in {records.visible(options.output)}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip

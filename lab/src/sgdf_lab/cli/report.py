"""`sgdf report`: tables and one page of curves from finished runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.cli.options import Commands, number, open_console, path, say
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from sgdf_lab.reports.comparison import Comparison


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("report", help="tables and one page of curves from finished runs")
    add = parser.add_argument
    add("runs", nargs="+", type=path, metavar="RUNS", help="run folders, or folders that hold them")
    add("-o", "--output", type=path, default=Path("report.html"), metavar="FILE",
        help="the page (default %(default)s)")  # fmt: skip
    add("--title", default="Comparison of optimizers", help='default "%(default)s"')
    add("--figure", type=path, metavar="STEM", help="also draw the curves as STEM.png and "
        "STEM.svg, and by learning rate as STEM-lr")  # fmt: skip
    add("--target", type=number, metavar="VALUE", help="of the metric, such as test accuracy in "
        "percent, for the time-to-target column (default: one that all reach)")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Show the runs in the terminal, and write the page."""
    from sgdf_lab.reports import page, tables
    from sgdf_lab.reports.comparison import compare_runs
    from sgdf_lab.reports.labels import visible
    from sgdf_lab.runs.records import read_plans, read_runs

    if options.figure and not options.figure.name:
        raise UserError("--figure takes the beginning of a file name, such as curves")
    console = open_console()
    records, skipped = read_runs(options.runs)
    planned, unreadable = read_plans(options.runs)
    skipped += unreadable
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not records:
        places = ", ".join(map(visible, options.runs))
        raise UserError(f"there are no runs in {places}: `sgdf train` makes some")
    count = "1 run" if len(records) == 1 else f"{len(records)} runs"
    say(console, f"Comparing {count} of {', '.join(map(visible, options.runs))}\n")
    comparisons = compare_runs(records, planned, options.target)
    tables.show_comparisons(console, comparisons)
    page.write(options.output, records, comparisons, title=options.title, skipped=skipped)
    say(console, f"The page is in {visible(options.output)}")
    if options.figure:
        write_figures(console, comparisons, options.figure)


def write_figures(console: "Console", comparisons: "list[Comparison]", stem: Path) -> None:
    from sgdf_lab.reports import figures
    from sgdf_lab.reports.labels import visible

    files = figures.write_all(comparisons, stem)
    for file in files:
        say(console, f"A figure is in {visible(file)}")
    if not files:
        say(console, "No run has a measured epoch: there is nothing to draw")

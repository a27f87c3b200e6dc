"""`sgdf report` and `sgdf evidence`: tables, figures and pages from finished runs."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab import api
from sgdf_lab.cli.options import Commands, add_data_dir, number, open_console, path, say
from sgdf_lab.cli.sweep import add_plan_options, add_precision, sweep_from
from sgdf_lab.support.errors import UserError, visible

if TYPE_CHECKING:
    from rich.console import Console


# --- sgdf report ---------------------------------------------------------------------------------


def add_report(commands: Commands) -> None:
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
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> None:
    """Show the runs in the terminal, and write the page."""
    from sgdf_lab.reports import tables

    if options.figure and not options.figure.name:
        raise UserError("--figure takes the beginning of a file name, such as curves")
    console = open_console()
    records, comparisons, files, skipped = api.compared(
        options.runs, options.output, options.title, options.target, options.figure
    )
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not records:
        raise api.no_runs(options.runs)
    count = "1 run" if len(records) == 1 else f"{len(records)} runs"
    say(console, f"Comparing {count} of {', '.join(map(visible, options.runs))}\n")
    tables.show_comparisons(console, comparisons)
    say(console, f"The page is in {visible(options.output)}")
    for file in files:
        say(console, f"A figure is in {visible(file)}")
    if options.figure and not files:
        say(console, "No run has a measured epoch: there is nothing to draw")


# --- sgdf evidence -------------------------------------------------------------------------------


def add_evidence(commands: Commands) -> None:
    parser = commands.add_parser(
        "evidence", help="what a sweep with trials shows: tables, figures, one JSON file"
    )
    add_plan_options(parser)
    add_precision(parser)
    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--out", type=path, default=Path("runs"), metavar="DIR", help="where to write summary.json "
        "and the figures (default %(default)s)")  # fmt: skip
    add("--runs", type=path, nargs="+", metavar="RUNS", help="where the runs are: folders, or "
        "files of sgdf sweep --record (default: in --out)")  # fmt: skip
    add("--across", type=path, nargs="+", metavar="SUMMARY.json", help="instead of a sweep: "
        "several tasks side by side, from the summaries that this command wrote")  # fmt: skip
    add("--step-times", type=path, metavar="FILE.json", help="of benchmarks/step_times.py: times "
        "of steps on an idle device, used instead of those of the runs")  # fmt: skip
    add_data_dir(files)
    add = parser.add_argument_group("what to show").add_argument
    add("--reference", nargs="+", default=[], metavar="NAME", help="compare with these optimizers "
        "or contestants (default: sgd, sgd-nesterov, adamw, nadamw, if there)")  # fmt: skip
    add("--markdown", action="store_true", help="print the tables as markdown, for a page")
    parser.set_defaults(run=run_evidence)


def run_evidence(options: argparse.Namespace) -> None:
    """Print the tables; write the summary and the figures."""
    if options.across:
        show_across(options)
        return
    sweep = api.tuned(sweep_from(options), options.data_dir)
    from sgdf_lab.reports.evidence import tables
    from sgdf_lab.sweeps.plan import lines_of_search

    console, places = open_console(), options.runs or [options.out]
    summary, files, skipped = api.summarized(
        *(sweep, places, options.reference, options.step_times),
        command=options.typed,
        out=options.out,
    )
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not summary["runs"]:
        raise api.no_runs(places, f" of {sweep.name}")
    if options.markdown:
        print(tables.markdown(summary))
        print("".join(f"- {line}\n" for line in lines_of_search(sweep)))
    else:
        for line in lines_of_search(sweep):
            say(console, line)
        console.print()
        tables.show(console, summary)
        console.print()
    say_written(files, console, options.markdown)


def show_across(options: argparse.Namespace) -> None:
    """A table and a figure for each reference, over all tasks where it is one."""
    if options.file or options.preset:
        raise UserError("give a sweep, or --across with summaries, not both")
    from sgdf_lab.reports import tables
    from sgdf_lab.reports.evidence import across

    console = open_console()
    found, files = api.stood_across(options.across, options.reference, options.out)
    for table in map(across.table, found):
        if options.markdown:
            print(tables.as_markdown(table), end="\n\n")
        else:
            tables.show(console, [table])
    say_written(files, console, options.markdown)


def say_written(files: Iterable[Path], console: "Console", markdown: bool) -> None:
    """Beside the markdown, which may be piped into a page, on standard error."""
    for file in files:
        line = f"Written: {visible(file)}"
        print(line, file=sys.stderr) if markdown else say(console, line)

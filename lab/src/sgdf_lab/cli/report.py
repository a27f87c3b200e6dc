"""`sgdf report` and `sgdf evidence`: tables, figures and pages from finished runs."""

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.options import Commands, add_data_dir, number, open_console, path, say
from sgdf_lab.cli.sweep import add_plan_options, add_precision, sweep_from
from sgdf_lab.support.errors import UserError, describe, message_of, visible

if TYPE_CHECKING:
    from rich.console import Console

    from sgdf_lab.reports.comparison import Comparison
    from sgdf_lab.sweeps.plan import Tuned


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
    from sgdf_lab.reports import page, tables
    from sgdf_lab.reports.comparison import compare_runs
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

    files = figures.write_all(comparisons, stem)
    for file in files:
        say(console, f"A figure is in {visible(file)}")
    if not files:
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
    sweep = planned(options)
    from sgdf_lab.reports.evidence import figures, tables
    from sgdf_lab.reports.evidence.summary import summarize
    from sgdf_lab.runs.records import read_runs
    from sgdf_lab.support.files import explained, write_json
    from sgdf_lab.sweeps.plan import lines_of_search

    console = open_console()
    places = options.runs or [options.out]
    records, skipped = read_runs(places)
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    summary = summarize(
        sweep, records, options.reference, options.typed, step_times_in(options.step_times)
    )
    if not summary["runs"]:
        where = ", ".join(map(visible, places))
        raise UserError(f"there are no runs of {sweep.name} in {where}: `sgdf sweep` makes some")
    with explained(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / "summary.json", summary, indent=1)
        files = [options.out / "summary.json", *figures.write_all(summary, options.out)]
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
    try:
        compare_across(options)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"one of {', '.join(map(str, options.across))} is not as sgdf evidence wrote it "
            f"({describe(error)}): make it again"
        ) from error


def compare_across(options: argparse.Namespace) -> None:
    from sgdf_lab.reports import tables
    from sgdf_lab.reports.evidence import across
    from sgdf_lab.support.figures import write_svg
    from sgdf_lab.support.files import explained

    console = open_console()
    summaries = [read_summary(file) for file in options.across]
    files = []
    references = options.reference or across.references_of(summaries)
    if not references:
        raise UserError("no summary has a usual reference: name one with --reference")
    for reference in references:
        found = across.across(summaries, reference)
        table = across.table(found)
        if options.markdown:
            print(tables.as_markdown(table), end="\n\n")
        else:
            tables.show(console, [table])
        name = re.sub(r"[^\w.-]", "_", reference)
        with explained(options.out):
            files.append(write_svg(across.figure(found), options.out / f"across-{name}"))
    say_written(files, console, options.markdown)


def read_summary(file: Path) -> dict[str, Any]:
    """A summary.json of this version."""
    from sgdf_lab.reports.evidence import checked
    from sgdf_lab.support.files import read_text

    try:
        return checked(json.loads(read_text(file)))
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise UserError(f"{file} is not a summary of sgdf evidence: {message_of(error)}") from None


def say_written(files: Iterable[Path], console: "Console", markdown: bool) -> None:
    """Beside the markdown, which may be piped into a page, on standard error."""
    for file in files:
        line = f"Written: {visible(file)}"
        print(line, file=sys.stderr) if markdown else say(console, line)


def step_times_in(file: Path | None) -> list[Any]:
    """The rows of a file of benchmarks/step_times.py."""
    if file is None:
        return []
    from sgdf_lab.support.files import read_text

    try:
        rows = json.loads(read_text(file))["rows"]
        names = {"file", "optimizer", "settings", "ms"}
        if not all(names <= row.keys() for row in rows):
            raise ValueError("a row is incomplete")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is not of benchmarks/step_times.py: {error}") from None
    return list(rows)


def planned(options: argparse.Namespace) -> "Tuned":
    """The plan; with --data-dir, only of the data in there."""
    from sgdf_lab.sweeps.plan import with_trials

    sweep = with_trials(sweep_from(options))
    return sweep if options.data_dir is None else sweep.with_data(options.data_dir)

"""Run a comparison and show it: what `sgdf sweep`, `sgdf reproduce` and `sgdf demo` share."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from sgdf_lab.cli.options import engine_arguments, say, sweep_context_from
from sgdf_lab.cli.screen import open_console
from sgdf_lab.report import page, tables
from sgdf_lab.report.choice import choice_of
from sgdf_lab.report.comparison import compare_runs
from sgdf_lab.report.labels import visible
from sgdf_lab.runs import packed
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import read_runs
from sgdf_lab.runs.session import RunContext
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps.execute import run_all
from sgdf_lab.sweeps.plan import Sweep, write_plan
from sgdf_lab.sweeps.tuned import contestants_in
from sgdf_lab.train.distributed import is_team

#: Shows what there is of a sweep, from the folder of its runs.
Show = Callable[[Sweep, Path, Console], None]


def run(sweep: Sweep, options: argparse.Namespace) -> None:
    """Run everything; when finished or interrupted, show what there is."""
    refuse_failures(execute(sweep, options))


def execute(
    sweep: Sweep, options: argparse.Namespace, show: Show | None = None
) -> list[dict[str, Any]]:
    """The same, shown by `show`, with the results of all runs, failed ones too."""
    if is_team():
        raise UserError("torchrun shares one run among processes: use it with sgdf train only")
    context, console = sweep_context_from(options), open_console()
    write_plan(sweep, context.out, context.command)
    with recorded(sweep, context.out, options.record, console) as on_end:
        try:
            arguments = engine_arguments(options, context.device)
            if console.is_terminal:
                say(console, plan_in_words(sweep, context, arguments))
            return run_all(sweep.configs, context, console=console, on_end=on_end, **arguments)
        finally:
            (show or show_comparison)(sweep, context.out, console)


@contextlib.contextmanager
def recorded(
    sweep: Sweep, out: Path, file: Path | None, console: Console
) -> Iterator[Callable[[Config], None]]:
    """Take earlier runs from the file; yields a function that adds one to it.

    A machine that vanishes loses no run that has ended.
    """
    if file is None:
        yield lambda _: None
        return
    folders = [out / config.name for config in sweep.configs]
    names = {folder.name for folder in folders}
    if taken := packed.complete(file, out, names) + packed.unpack(file, out, names):
        say(console, f"{taken} of {len(folders)} runs were in {visible(file)}")
    packed.pack(folders, file)
    try:
        yield lambda config: packed.pack([out / config.name], file)
    finally:
        packed.pack(folders, file)  # a run may have ended while the sweep was being stopped


def refuse_failures(results: list[dict[str, Any]]) -> None:
    if failed := sum(result["status"] == "failed" for result in results):
        raise UserError(f"{failed} of {len(results)} runs failed; --retry tries them again")


def plan_in_words(sweep: Sweep, context: RunContext, arguments: dict[str, Any]) -> str:
    count = len(sweep.configs)
    runs = "1 run" if count == 1 else f"{count} runs"
    if arguments["engine"] == "ray":
        how = "on Ray"
    else:
        jobs, together = arguments["jobs"], arguments["together"]
        at_once = min(count, jobs if jobs > 1 else together)
        how = f"on {context.device}, {'one' if at_once == 1 else at_once} at a time"
    return f"{runs} {how}, written to {visible(context.out)}; the same command resumes them"


def show_comparison(sweep: Sweep, out: Path, console: Console) -> None:
    """Print the tables, and write the page beside the runs."""
    folders = (out / config.name for config in sweep.configs)
    records, skipped = read_runs(folder for folder in folders if folder.is_dir())
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not records:
        return
    console.print(f"\n{visible(sweep.title)}\n", style="bold", markup=False, highlight=False)
    choices = None
    if sweep.chosen_from:
        found = [c for c in contestants_in(sweep.chosen_from, out) if c.chosen]
        choices = {c.chosen.config.cell_key: choice_of(c) for c in found if c.chosen}
    comparisons = compare_runs(records, sweep.configs, choices=choices)
    tables.show_comparisons(console, comparisons)
    if sweep.note:
        say(console, sweep.note)
    file = out / f"{sweep.name}.html"
    page.write(file, records, comparisons, title=sweep.title, skipped=skipped)
    say(console, f"The runs are in {visible(out)}")
    say(console, f"The page is in {visible(file)}")

"""Run a comparison and show it: what `sgdf sweep`, `sgdf reproduce` and `sgdf demo` share."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from sgdf.cli.options import engine_arguments, say, sweep_context_from
from sgdf.lab.sweeps.execute import run_all
from sgdf.lab.sweeps.plan import Sweep, write_plan
from sgdf.lab.train.distributed import is_team
from sgdf.report import page, terminal
from sgdf.report.labels import visible
from sgdf.report.records import read_runs
from sgdf.report.statistics import compare_runs
from sgdf.support.errors import UserError


def run(sweep: Sweep, options: argparse.Namespace) -> None:
    """Run everything; when finished or interrupted, show what there is."""
    refuse_failures(execute(sweep, options))


def execute(sweep: Sweep, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same, with the results of all runs, failed ones too."""
    if is_team():
        raise UserError("torchrun shares one run among processes: use it with sgdf train only")
    context, console = sweep_context_from(options), Console()
    write_plan(sweep, context.out, context.command)
    try:
        arguments = engine_arguments(options, context.device)
        return run_all(sweep.configs, context, console=console, **arguments)
    finally:
        show(sweep, context.out, console)


def refuse_failures(results: list[dict[str, Any]]) -> None:
    if failed := sum(result["status"] == "failed" for result in results):
        raise UserError(f"{failed} of {len(results)} runs failed; --retry tries them again")


def show(sweep: Sweep, out: Path, console: Console) -> None:
    """Print the tables, and write the page beside the runs."""
    folders = (out / config.name for config in sweep.configs)
    records, skipped = read_runs(folder for folder in folders if folder.is_dir())
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not records:
        return
    console.print(f"\n{visible(sweep.title)}\n", style="bold", markup=False, highlight=False)
    comparisons = compare_runs(records, sweep.configs)
    terminal.show(console, comparisons)
    if sweep.note:
        say(console, sweep.note)
    file = out / f"{sweep.name}.html"
    page.write(file, records, comparisons, title=sweep.title, skipped=skipped)
    say(console, f"The runs are in {visible(out)}")
    say(console, f"The page is in {visible(file)}")

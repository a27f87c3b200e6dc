"""Run a comparison and show it: what `sgdf sweep`, `sgdf reproduce` and `sgdf demo` share."""

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from sgdf_lab.cli.options import engine_from, open_console, say, sweep_context_from
from sgdf_lab.reports import page, tables
from sgdf_lab.reports.comparison import compare_stage
from sgdf_lab.reports.labels import visible
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps.execute import run_sweep
from sgdf_lab.sweeps.plan import Grid, Sweep


def show(sweep: Grid, out: Path, console: Console) -> None:
    """Print the tables, and write the page beside the runs."""
    folders = (out / config.name for config in sweep.configs)
    records, skipped = read_runs(folder for folder in folders if folder.is_dir())
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not records:
        return
    console.print(f"\n{visible(sweep.title)}\n", style="bold", markup=False, highlight=False)
    comparisons = compare_stage(sweep, records, out)
    tables.show_comparisons(console, comparisons)
    if sweep.note:
        say(console, sweep.note)
    file = out / f"{sweep.name}.html"
    page.write(file, records, comparisons, title=sweep.title, skipped=skipped)
    say(console, f"The runs are in {visible(out)}")
    say(console, f"The page is in {visible(file)}")


def run(
    sweep: Sweep,
    options: argparse.Namespace,
    show: Callable[[Grid, Path, Console], None] = show,
) -> None:
    """Run everything; show each stage when it has ended or is interrupted."""
    context, console = sweep_context_from(options), open_console()
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

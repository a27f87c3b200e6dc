"""Run a comparison and show it: what `sgdf sweep`, `sgdf reproduce` and `sgdf demo` share."""

import argparse

from rich.console import Console

from sgdf.cli.options import engine_from, place_for_engine, say
from sgdf.lab.runs.session import Place
from sgdf.lab.sweeps.plan import Sweep, run_all, write_plan
from sgdf.lab.train.distributed import is_team
from sgdf.report import page, terminal
from sgdf.report.labels import visible
from sgdf.report.records import read_runs
from sgdf.report.statistics import compare_runs
from sgdf.support.errors import UserError


def run(sweep: Sweep, options: argparse.Namespace) -> None:
    """Run everything; when finished or interrupted, show what there is."""
    if is_team():
        raise UserError("torchrun shares one run among processes: use it with sgdf train only")
    place, console = place_for_engine(options), Console()
    write_plan(sweep, place)
    try:
        results = run_all(sweep.configs, place, console=console, **engine_from(options, place))
    finally:
        show(sweep, place, console)
    if failed := sum(result["status"] == "failed" for result in results):
        raise UserError(f"{failed} of {len(results)} runs failed; --retry tries them again")


def show(sweep: Sweep, place: Place, console: Console) -> None:
    """Print the tables, and write the page beside the runs."""
    folders = (place.out / config.name for config in sweep.configs)
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
    file = place.out / f"{sweep.name}.html"
    page.write(file, records, comparisons, title=sweep.title, skipped=skipped)
    say(console, f"The runs are in {visible(place.out)}")
    say(console, f"The page is in {visible(file)}")

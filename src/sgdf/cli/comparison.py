"""Run a comparison and show it: what `sgdf sweep`, `sgdf reproduce` and `sgdf demo` share."""

import argparse
from pathlib import Path

from rich.console import Console

from sgdf.cli.options import engine_arguments, say, sweep_context_from
from sgdf.lab.sweeps.execute import run_all
from sgdf.lab.sweeps.plan import Sweep, write_plan
from sgdf.lab.train.distributed import is_team
from sgdf.report import page, records, tables
from sgdf.support.errors import UserError


def run(sweep: Sweep, options: argparse.Namespace) -> None:
    """Bring all runs to their end; then, or when stopped, show what there is."""
    if is_team():
        raise UserError("torchrun shares one run among processes: it goes with sgdf train alone")
    context, console = sweep_context_from(options), Console()
    write_plan(sweep, context.out, context.command)
    try:
        arguments = engine_arguments(options, context.device)
        results = run_all(sweep.configs, context, console=console, **arguments)
    finally:
        show(sweep, context.out, console)
    if failed := sum(result["status"] == "failed" for result in results):
        raise UserError(f"{failed} of {len(results)} runs failed; --retry tries them again")


def show(sweep: Sweep, out: Path, console: Console) -> None:
    """The tables in the terminal, and the page beside the runs."""
    found, skipped = records.read(there(sweep, out))
    for complaint in skipped:
        say(console, f"skipped: {complaint}")
    if not found:
        return
    console.print(
        f"\n{records.visible(sweep.title)}\n", style="bold", markup=False, highlight=False
    )
    for comparison in tables.build(found, planned=sweep.configs):
        console.print(tables.as_rich(comparison, console.width), highlight=False)
        console.print()
    if sweep.note:
        say(console, sweep.note)
    target = out / f"{sweep.name}.html"
    page.write(found, target, title=sweep.title, planned=sweep.configs, skipped=skipped)
    say(console, f"The runs are in {records.visible(out)}")
    say(console, f"The page is in {records.visible(target)}")


def there(sweep: Sweep, out: Path) -> list[Path]:
    folders = (out / config.name for config in sweep.configs)
    return [folder for folder in folders if folder.is_dir()]

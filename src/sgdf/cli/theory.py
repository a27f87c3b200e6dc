"""`sgdf theory`: check the paper's statements by simulation."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf.cli.options import Commands, path, say
from sgdf.support.errors import UserError, unknown
from sgdf.theory import statements

if TYPE_CHECKING:
    from rich.table import Table

    from sgdf.theory.result import Result


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("theory", help="check the paper's statements by simulation")
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help="check only these statements (default: all)")
    add("--out", type=path, default=Path("theory"), help="folder for the page, numbers and figures")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check the statements, show a table, write results.json, theory.html and the figures."""
    from rich.console import Console
    from rich.progress import track

    from sgdf.theory.output import write_results

    known = statements()
    names = list(dict.fromkeys(options.only or known))
    for name in names:
        if name not in known:
            raise unknown("statement", name, known)
    out: Path = options.out
    try:
        out.mkdir(parents=True, exist_ok=True)  # before the minute that the checks take
    except OSError as error:
        raise UserError(f"cannot write to {out}: choose another folder with --out") from error
    console = Console()
    start = time.perf_counter()
    checking = track(names, "Checking", console=console, transient=True)
    results = [known[name]() for name in checking]
    seconds = time.perf_counter() - start
    write_results(results, out, command=options.typed, seconds=seconds)
    console.print(table(results))
    say(console, f"Wrote {out / 'theory.html'}, {out / 'results.json'} and {out / 'figures'}.")


def table(results: "list[Result]") -> "Table":
    """One row per statement, with its most telling check."""
    from rich.markup import escape
    from rich.table import Table

    from sgdf.theory.result import CONDITION, HOLDS

    table = Table(title="The paper's statements, checked by simulation", show_lines=True)
    table.add_column("statement", no_wrap=True, style="bold")
    table.add_column("check, and where in the paper", overflow="fold")
    table.add_column("printed", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("verdict")
    styles = {HOLDS: "green", CONDITION: "yellow"}
    for result in results:
        key = result.headline
        numbers = (
            f"{key.relation} {key.printed:.3g}",
            f"{key.measured:.3g}" + (f" ± {key.error:.1g}" if key.error else ""),
        )
        style = styles.get(result.verdict, "red")
        what = f"{escape(key.what)}\n[dim]{escape(result.label)}[/dim]"
        table.add_row(result.name, what, *numbers, f"[{style}]{result.verdict}[/{style}]")
    return table

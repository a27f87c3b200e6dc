"""`sgdf theory`: check the paper's statements by simulation."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf.cli.options import Commands, say
from sgdf.support.errors import UserError, unknown
from sgdf.theory import statements

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sgdf.theory.result import Result


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("theory", help="check the paper's statements by simulation")
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help="check these statements alone (default: all)")
    add("--out", type=Path, default=Path("theory"), help="folder for the page, numbers and figures")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check the statements, show a table, write results.json, theory.html and the figures."""
    from rich.console import Console

    from sgdf.theory import figures, page

    known = statements()
    names = list(dict.fromkeys(options.only or known))
    for name in names:
        if name not in known:
            raise unknown("statement", name, known)
    out: Path = options.out
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: choose another folder with --out") from error
    console = Console()
    began = time.perf_counter()
    results = check(names, console)
    record = provenance(options.typed, time.perf_counter() - began)
    record["statements"] = [result.as_json() for result in results]
    (out / "results.json").write_text(
        json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
    for result in results:
        figures.save(result, out / "figures")
    (out / "theory.html").write_text(page.build(results, record), "utf-8")
    console.print(table(results))
    say(console, f"Wrote {out / 'theory.html'}, {out / 'results.json'} and {out / 'figures'}.")


def check(names: list[str], console: "Console") -> "list[Result]":
    """Run the named statements behind a progress bar."""
    from rich.progress import track

    known = statements()
    return [known[name]() for name in track(names, "Checking", console=console, transient=True)]


def provenance(command: str, seconds: float) -> dict[str, object]:
    import numpy

    from sgdf.support.provenance import commit, machine

    return {
        "command": command,
        "commit": commit(),
        "machine": machine("cpu") | {"numpy": numpy.__version__},
        "seconds": round(seconds, 1),
    }


def table(results: "list[Result]") -> "Table":
    """One row a statement: the check that says most about it."""
    from rich.markup import escape
    from rich.table import Table

    from sgdf.theory.result import CONDITION, HOLDS

    shown = Table(title="The paper's statements, checked by simulation", show_lines=True)
    shown.add_column("statement", no_wrap=True, style="bold")
    shown.add_column("check, and where in the paper", overflow="fold")
    shown.add_column("printed", justify="right")
    shown.add_column("measured", justify="right")
    shown.add_column("verdict")
    styles = {HOLDS: "green", CONDITION: "yellow"}
    for result in results:
        key = result.headline
        numbers = (
            f"{key.relation} {key.printed:.3g}",
            f"{key.measured:.3g}" + (f" ± {key.error:.1g}" if key.error else ""),
        )
        style = styles.get(result.verdict, "red")
        what = f"{escape(key.what)}\n[dim]{escape(result.label)}[/dim]"
        shown.add_row(result.name, what, *numbers, f"[{style}]{result.verdict}[/{style}]")
    return shown

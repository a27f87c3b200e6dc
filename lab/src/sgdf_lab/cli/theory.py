"""`sgdf theory`: check the paper's statements by simulation."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.cli.options import Commands, open_console, path, say
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.tables import Column, as_rich
from sgdf_lab.theory import statements

if TYPE_CHECKING:
    from rich.console import Group

    from sgdf_lab.theory.result import Result


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("theory", help="check the paper's statements by simulation")
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help="check only these statements (default: all)")
    add("--out", type=path, default=Path("theory"), help="folder for the page, numbers and figures")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check the statements, show a table, write results.json, theory.html and the figures."""
    from rich.progress import track

    from sgdf_lab.theory.output import write_results

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
    console = open_console()
    count = "1 statement" if len(names) == 1 else f"{len(names)} statements"
    say(console, f"Checking {count} by simulation; page, numbers and figures go to {out}\n")
    start = time.perf_counter()
    checking = track(names, "Checking", console=console, transient=True)
    results = [known[name]() for name in checking]
    seconds = time.perf_counter() - start
    write_results(results, out, command=options.typed, seconds=seconds)
    console.print(table(results, console.width))
    say(console, f"\nThe numbers are in {out / 'results.json'}, the figures in {out / 'figures'}")
    say(console, f"The page is in {out / 'theory.html'}")


def table(results: "list[Result]", width: int) -> "Group":
    """One row per statement, with its most telling check below its name. No number is broken."""
    columns = [
        Column("statement, its check, and where in the paper", "label"),
        *map(Column, ("printed", "measured")),
        Column("verdict", "text"),
    ]
    rows = [
        [f"{result.name}\n{result.headline.what}\n{result.label}", *numbers_of(result),
         result.verdict]
        for result in results
    ]  # fmt: skip
    title = "The paper's statements, checked by simulation"
    return as_rich(columns, rows, width, title=title, lines=True)


def numbers_of(result: "Result") -> tuple[str, str]:
    """The printed number and the measured one, of the most telling check."""
    key = result.headline
    spread = f" ± {key.error:.1g}" if key.error else ""
    return f"{key.relation} {key.printed:.3g}", f"{key.measured:.3g}{spread}"

"""The paper's statements, checked: each a formula as printed and a simulation that tests it.

    from sgdf.theory import statements
    print(statements()["wiener-gain"]().verdict)

A statement is a function of a seed and an effort (1 for the full size, less for a quick look)
that gives a `Result`.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sgdf.theory.result import Result

__all__ = ["add_arguments", "check", "run", "statements"]


def statements() -> "dict[str, Callable[..., Result]]":
    """Every statement by name, in the paper's order."""
    from sgdf.theory import convex, estimation, momentum, nonconvex

    return {
        "unified-momentum": momentum.unified_momentum,
        "mse-decomposition": estimation.mean_squared_error,
        "sde": momentum.diffusion_of_momentum,
        "sde-solution": momentum.solution_of_the_diffusion,
        "bias-bound": momentum.bias_of_momentum,
        "variance-bound": momentum.variance_of_momentum,
        "wiener-gain": estimation.wiener_gain_optimality,
        "correction-factor": estimation.correction_of_m,
        "variance-estimate": estimation.estimate_of_the_variance,
        "gaussian-fusion": estimation.gaussian_fusion,
        "tangent": convex.tangent_below,
        "gradient-sum": convex.sum_of_gradients,
        "average-squares": convex.sum_of_squared_averages,
        "unbiased-estimate": estimation.unbiased_estimate,
        "gain-above-half": estimation.gain_above_half,
        "convex-regret": convex.convex_regret,
        "smoothness": nonconvex.smoothness,
        "estimate-bound": nonconvex.bounded_estimate,
        "step-sums": nonconvex.sums_of_steps,
        "nonconvex-rate": nonconvex.rate,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="check these statements alone (default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("theory"), help="folder for the page, numbers and figures"
    )


def run(options: argparse.Namespace) -> None:
    """Check the statements, show a table, write results.json, theory.html and the figures."""
    from rich.console import Console

    from sgdf.lab.errors import LabError, unknown
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
        raise LabError(f"cannot write to {out}: choose another folder with --out") from error
    console = Console()
    began = time.perf_counter()
    results = check(names, console)
    record = provenance(getattr(options, "typed", "sgdf theory"), time.perf_counter() - began)
    record["statements"] = [result.as_json() for result in results]
    (out / "results.json").write_text(
        json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
    for result in results:
        figures.save(result, out / "figures")
    (out / "theory.html").write_text(page.build(results, record), "utf-8")
    console.print(table(results))
    wrote = f"Wrote {out / 'theory.html'}, {out / 'results.json'} and {out / 'figures'}."
    console.print(wrote, soft_wrap=True)


def check(names: list[str], console: "Console") -> "list[Result]":
    """Run the named statements behind a progress bar."""
    from rich.progress import track

    known = statements()
    return [known[name]() for name in track(names, "Checking", console=console, transient=True)]


def provenance(command: str, seconds: float) -> dict[str, object]:
    import numpy

    from sgdf.lab.provenance import commit, machine

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

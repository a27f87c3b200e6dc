"""`sgdf bench`, `sgdf data` and `sgdf theory`: the cost of a step, the datasets, the statements."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.bench import contestants as known
from sgdf_lab.cli.options import (
    Commands,
    add_data_dir,
    number,
    open_console,
    path,
    positive,
    say,
)
from sgdf_lab.registry.datasets import DATASETS
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.tables import Column, as_rich
from sgdf_lab.theory import statements

if TYPE_CHECKING:
    from rich.console import Console, Group

    from sgdf_lab.theory.result import Result


# --- sgdf bench -----------------------------------------------------------------------------------


def add_bench(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure what the optimizers cost")
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    step_parser = subjects.add_parser(
        "step", help="time and memory of one step, beside SGD and AdamW"
    )
    add = step_parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    default = "; ".join(
        f"on {one} {', '.join(known.default_lists(one))}" for one in ("cpu", "cuda")
    )
    add("--lists", nargs="+", metavar="LIST",
        help=f"lists of parameters: {', '.join(known.LISTS)} (default: {default})")  # fmt: skip
    names = ", ".join(known.selectable())
    add("--only", nargs="+", metavar="NAME", help=f"measure only these: {names} "
        f"({known.WITH_TARGETS}: all that the targets of the list compare)")  # fmt: skip
    add("--repeats", type=positive, default=known.REPEATS,
        help="timings of each (default %(default)s)")  # fmt: skip
    add("--seconds", type=number, default=known.SECONDS,
        help="limit for each (default %(default)s)")  # fmt: skip
    add("--total", type=number, metavar="SECONDS",
        help="approximate limit for all together: it lowers --seconds")  # fmt: skip
    add("--memory", type=number, metavar="GIB", help="limit in GiB (default: what is free)")
    add("--out", type=path, help="default: bench/step-DEVICE.json")
    step_parser.set_defaults(run=run_step)


def run_step(options: argparse.Namespace) -> None:
    from sgdf_lab import bench

    bench.step(
        device=options.device,
        lists=options.lists,
        only=options.only,
        repeats=options.repeats,
        seconds=options.seconds,
        total=options.total,
        memory=options.memory,
        out=options.out,
        command=options.typed,
    )


# --- sgdf data ------------------------------------------------------------------------------------


def add_data(commands: Commands) -> None:
    parser = commands.add_parser("data", help="the datasets: list what is here, fetch the rest")
    subjects = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    fetch = subjects.add_parser("fetch", help="download a dataset, check it and unpack it")
    fetch.add_argument("name", metavar="NAME", help=f"of {', '.join(DATASETS)}")
    fetch.set_defaults(run=run_fetch)
    show = subjects.add_parser("list", help="show which datasets are here, and from where")
    show.set_defaults(run=run_list)
    for each in (fetch, show):
        add_data_dir(each)


def run_fetch(options: argparse.Namespace) -> None:
    from sgdf_lab import data

    spec = data.find(options.name)
    console = open_console()
    say(console, spec.fetch(options.data_dir, console))


def run_list(options: argparse.Namespace) -> None:
    show_datasets(options.data_dir, open_console())


def show_datasets(folder: str | Path | None, console: "Console") -> None:
    from sgdf_lab import data
    from sgdf_lab.data.dataset import data_folder

    folder = data_folder(folder)
    columns = [
        Column("name", "label"),
        *(Column("train / test"), Column("classes")),
        *(Column("here", "text"), Column("from, or fetched by", "text")),
    ]
    rows = []
    for spec in data.all_datasets():
        here, where = spec.availability(folder)
        counts = f"{spec.train} / {spec.test}" if spec.train else "your own"
        rows.append([spec.name, counts, str(spec.classes or "–"), here, where])
    console.print(as_rich(columns, rows, console.width, title=f"Datasets in {folder}"))
    say(console, "\nsgdf data fetch NAME downloads a dataset, checks it and unpacks it.")


# --- sgdf theory ----------------------------------------------------------------------------------


def add_theory(commands: Commands) -> None:
    parser = commands.add_parser("theory", help="check the paper's statements by simulation")
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help="check only these statements (default: all)")
    add("--out", type=path, default=Path("theory"), help="folder for the page, numbers and figures")
    parser.set_defaults(run=run_theory)


def run_theory(options: argparse.Namespace) -> None:
    """Check the statements, show a table, write results.json, theory.html and the figures."""
    from rich.progress import track

    from sgdf_lab.theory.output import write_results

    found = statements()
    names = list(dict.fromkeys(options.only or found))
    for name in names:
        if name not in found:
            raise unknown("statement", name, found)
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
    results = [found[name]() for name in checking]
    seconds = time.perf_counter() - start
    write_results(results, out, command=options.typed, seconds=seconds)
    console.print(theory_table(results, console.width))
    say(console, f"\nThe numbers are in {out / 'results.json'}, the figures in {out / 'figures'}")
    say(console, f"The page is in {out / 'theory.html'}")


def theory_table(results: "list[Result]", width: int) -> "Group":
    """One row per statement, with its most telling check below its name."""
    columns = [Column("statement, its check, and where in the paper", "label")]
    columns += [*map(Column, ("printed", "measured")), Column("verdict", "text")]
    rows = [
        (f"{r.name}\n{r.headline.what}\n{r.label}\n", *numbers_of(r), r.verdict) for r in results
    ]
    title = "The paper's statements, checked by simulation"
    return as_rich(columns, rows, width, title=title)


def numbers_of(result: "Result") -> tuple[str, str]:
    """The printed number and the measured one, of the most telling check."""
    key = result.headline
    spread = f" ± {key.error:.1g}" if key.error else ""
    return f"{key.relation} {key.printed:.3g}", f"{key.measured:.3g}{spread}"

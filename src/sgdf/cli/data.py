"""`sgdf data`: fetch datasets, and list which are here."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf.cli.names import DATASETS
from sgdf.cli.options import Commands, add_data_dir, say

if TYPE_CHECKING:
    from rich.console import Console


def add_to(commands: Commands) -> None:
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
    from rich.console import Console

    from sgdf.lab import data

    spec = data.find(options.name)
    console = Console()
    say(console, spec.fetch(options.data_dir, console))


def run_list(options: argparse.Namespace) -> None:
    from rich.console import Console

    show_datasets(options.data_dir, Console())


def show_datasets(folder: str | Path | None, console: "Console") -> None:
    from rich.markup import escape
    from rich.table import Table

    from sgdf.lab import data
    from sgdf.lab.data.location import data_folder

    folder = data_folder(folder)
    table = Table(title=f"Datasets in {escape(str(folder))}")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("train / test", justify="right")
    table.add_column("classes", justify="right")
    table.add_column("here")
    table.add_column("from, or fetched by", overflow="fold")
    for spec in data.all_datasets():
        here, where = spec.availability(folder)
        counts = f"{spec.train} / {spec.test}" if spec.train else "your own"
        table.add_row(escape(spec.name), counts, str(spec.classes or "–"), here, escape(where))
    console.print(table)

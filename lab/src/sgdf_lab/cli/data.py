"""`sgdf data`: fetch datasets, and list which are here."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.cli.options import Commands, add_data_dir, open_console, say
from sgdf_lab.registry.datasets import DATASETS
from sgdf_lab.support.tables import Column, as_rich

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

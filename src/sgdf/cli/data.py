"""`sgdf data`: download the data sets, and show which are here."""

import argparse

from sgdf.cli.options import Commands, add_data_dir
from sgdf.lab import data


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("data", help="the data sets: what is here, and getting them")
    subjects = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    fetch = subjects.add_parser("fetch", help="download a dataset, check it and unpack it")
    fetch.add_argument("name", metavar="NAME", help=", ".join(data.NAMES))
    fetch.set_defaults(run=run_fetch)
    show = subjects.add_parser("list", help="show which datasets are here, and from where")
    show.set_defaults(run=run_list)
    for each in (fetch, show):
        add_data_dir(each)


def run_fetch(options: argparse.Namespace) -> None:
    from sgdf.lab.data import fetch

    fetch.run(options.name, options.data_dir)


def run_list(options: argparse.Namespace) -> None:
    from sgdf.lab.data import listing

    listing.run(options.data_dir)

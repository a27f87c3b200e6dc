"""The data of the lab: found on the disk in any of its usual forms, checked, never guessed."""

import argparse
from pathlib import Path
from typing import Any

from sgdf.lab.data import places, read
from sgdf.lab.data import synthetic as stand_in
from sgdf.lab.data.sets import FACTS, NAMES, Dataset, Split
from sgdf.lab.errors import LabError, unknown

__all__ = ["NAMES", "Dataset", "Split", "add_commands", "load"]


def load(name: str, folder: str | Path | None = None, *, synthetic: bool = False) -> Dataset:
    """Read a dataset and check it against what is known about it.

    Args:
        name: one of ``NAMES``.
        folder: where the data lies, each dataset in a folder of its name or directly;
            by default the environment variable SGDF_DATA, or else ``~/.cache/sgdf/data``.
        synthetic: make a small stand-in of the same shape and number of classes instead.
    """
    if name not in FACTS:
        raise unknown("dataset", name, NAMES)
    if synthetic:
        return _dataset(name, stand_in.make(name), "synthetic")
    if name == "digits":
        return _dataset(name, read.digits(), "scikit-learn")
    folder = places.data_folder(folder)
    command = places.fetch_command(name, folder)
    damage: LabError | None = None
    for source in places.find(name, folder):
        try:
            return _dataset(name, source.load(), str(source))
        except read.Damaged as error:
            damage = LabError(f"{error}: {source.remedy(error)} and run `{command}`")
            if not source.form.is_cache:  # behind a damaged cache lies what it was decoded from
                raise damage from None
    if damage:
        raise damage
    if places.half_fetched(name, folder):
        raise LabError(f"{name} in {folder} is half downloaded: run `{command}` to go on")
    raise LabError(f"{name} is not in {folder}: run `{command}`")


def _dataset(name: str, parts: tuple[Split, Split], source: str) -> Dataset:
    facts = FACTS[name]
    return Dataset(name, *parts, facts.classes, facts.mean, facts.std, source)


def add_commands(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommands `fetch` and `list`."""
    fetch = subparsers.add_parser("fetch", help="download a dataset, check it and unpack it")
    fetch.add_argument("name", metavar="NAME", help=", ".join(NAMES))
    fetch.set_defaults(run=_fetch)
    listing = subparsers.add_parser("list", help="show which datasets are here, and from where")
    listing.set_defaults(run=_list)
    for parser in (fetch, listing):
        parser.add_argument(
            "--data-dir",
            metavar="DIR",
            type=Path,
            help="where the data lies (default: $SGDF_DATA, or else ~/.cache/sgdf/data)",
        )


def _fetch(options: argparse.Namespace) -> None:
    from sgdf.lab.data import fetch

    fetch.run(options.name, options.data_dir)


def _list(options: argparse.Namespace) -> None:
    from sgdf.lab.data import listing

    listing.run(options.data_dir)

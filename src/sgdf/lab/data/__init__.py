"""The data of the lab: found on the disk in any of its usual forms, checked, never guessed."""

from pathlib import Path

from sgdf.lab.data import places, read
from sgdf.lab.data import synthetic as stand_in
from sgdf.lab.data.sets import FACTS, NAMES, Dataset, Split
from sgdf.support.errors import UserError, unknown

__all__ = ["NAMES", "Dataset", "Split", "load"]


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
    damage: UserError | None = None
    for source in places.find(name, folder):
        try:
            return _dataset(name, source.load(), str(source))
        except read.Damaged as error:
            damage = UserError(f"{error}: {source.remedy(error)} and run `{command}`")
            if not source.form.is_cache:  # behind a damaged cache lies what it was decoded from
                raise damage from None
    if damage:
        raise damage
    if places.half_fetched(name, folder):
        raise UserError(f"{name} in {folder} is half downloaded: run `{command}` to go on")
    raise UserError(f"{name} is not in {folder}: run `{command}`")


def _dataset(name: str, parts: tuple[Split, Split], source: str) -> Dataset:
    facts = FACTS[name]
    return Dataset(name, *parts, facts.classes, facts.mean, facts.std, source)

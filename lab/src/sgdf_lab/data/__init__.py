"""The datasets of the lab: found on the disk in any of their usual layouts, and checked.

They are listed in `sgdf_lab.registry.datasets`. An installed package adds one by an entry point of
the group ``sgdf.datasets`` that names a `DatasetSpec`.
"""

from pathlib import Path

from sgdf_lab import plugins
from sgdf_lab.data.arrays import ArrayDataset, Layout
from sgdf_lab.data.dataset import Dataset, DatasetSpec, Split, as_split
from sgdf_lab.registry.datasets import DATASETS
from sgdf_lab.support.errors import UserError, unknown

__all__ = [
    "ArrayDataset",
    "Dataset",
    "DatasetSpec",
    "Layout",
    "Split",
    "all_datasets",
    "as_split",
    "find",
    "load",
]

GROUP = "sgdf.datasets"


def find(name: str) -> DatasetSpec:
    """The dataset of that name; `UserError` if there is none."""
    if name in DATASETS:
        own: DatasetSpec = plugins.load_own(DATASETS[name])
        return own
    announced = plugins.announced(GROUP)
    if name not in announced:
        raise unknown("dataset", name, [*DATASETS, *announced])
    spec = plugins.load("dataset", announced[name])
    if not isinstance(spec, DatasetSpec):
        raise UserError(
            f"the dataset {name!r} of {announced[name].value} is a {type(spec).__name__}, not a "
            "sgdf_lab.data.DatasetSpec"
        )
    return spec


def all_datasets() -> list[DatasetSpec]:
    """The lab's own datasets, then those of installed packages."""
    others = sorted(plugins.announced(GROUP).keys() - DATASETS.keys())
    return [find(name) for name in (*DATASETS, *others)]


def load(name: str, folder: str | Path | None = None, *, synthetic: bool = False) -> Dataset:
    """Read a dataset of small images into memory, and check it.

    Args:
        name: of an `ArrayDataset`.
        folder: the data folder, which has each dataset in a folder of its name, or directly;
            by default the environment variable SGDF_DATA, or else ``~/.cache/sgdf/data``.
        synthetic: make a small stand-in of the same image shape and number of classes instead.
    """
    spec = find(name)
    if not isinstance(spec, ArrayDataset):
        raise UserError(f"{name} is not read into memory: its images are files")
    return spec.load(folder, synthetic=synthetic)

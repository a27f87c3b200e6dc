"""The datasets of the lab: found on the disk in any of their usual forms, and checked.

A module of this package that defines a `DATASET` adds it to the lab. So does an installed package
with an entry point of the group ``sgdf.datasets`` that names a `DatasetSpec`.
"""

import importlib
import pkgutil
from pathlib import Path

from sgdf_lab import plugins
from sgdf_lab.data.arrays import ArrayDataset
from sgdf_lab.data.image_folders import ImageFolderDataset
from sgdf_lab.data.spec import DatasetSpec
from sgdf_lab.data.splits import Dataset, Split
from sgdf_lab.support.errors import UserError, unknown

__all__ = [
    "DATASETS",
    "ArrayDataset",
    "Dataset",
    "DatasetSpec",
    "ImageFolderDataset",
    "Split",
    "all_datasets",
    "discover",
    "find",
    "load",
]

GROUP = "sgdf.datasets"


def discover() -> dict[str, DatasetSpec]:
    """The datasets that the modules of this package define, in the order of lists."""
    modules = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    )
    specs: list[DatasetSpec] = [m.DATASET for m in modules if hasattr(m, "DATASET")]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: (spec.order, spec.name))}


DATASETS = discover()


def find(name: str) -> DatasetSpec:
    """The dataset of that name; `UserError` if there is none."""
    if name in DATASETS:
        return DATASETS[name]
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
    return [*DATASETS.values(), *map(find, others)]


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

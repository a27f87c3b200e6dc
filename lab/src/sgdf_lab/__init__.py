"""Experiments: fair comparisons of optimizers (``pip install "sgdf-lab"``).

What `sgdf train` does, from Python::

    from sgdf_lab import make_config, train_runs
    from sgdf_lab.report import read_records, write_page

    config = make_config("images", data_dir="photos", model="resnet18", epochs=5)
    train_runs([config], data_dir="photos", out="runs")
    records = read_records("runs")
    print(records[0].best)
    write_page("report.html", records)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgdf_lab.runs.config import make as make_config
    from sgdf_lab.runs.session import train_runs

__version__ = "0.2.0"
__all__ = ["make_config", "train_runs"]

# Imported when they are used: parts of the lab need no more than torch.
_PLACES = {
    "make_config": ("sgdf_lab.runs.config", "make"),
    "train_runs": ("sgdf_lab.runs.session", "train_runs"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute)

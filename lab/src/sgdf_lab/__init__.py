"""Experiments: fair comparisons of optimizers (``pip install "sgdf-lab"``).

What the commands do, from Python::

    from sgdf_lab import evidence, report, sweep, train

    train("digits", optimizer="adamw", settings={"lr": 0.01}, seed=[0, 1])
    sweep("digits.toml", record="results/digits/runs.jsonl")
    print(evidence("digits.toml", "results/digits/runs.jsonl")["comparisons"])
    report("runs", output="report.html")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgdf_lab.api import across, evidence, report, sweep, train, train_runs
    from sgdf_lab.reports import read_records, write_page
    from sgdf_lab.runs.config import make as make_config

__version__ = "0.2.0"
__all__ = [
    "across",
    "evidence",
    "make_config",
    "read_records",
    "report",
    "sweep",
    "train",
    "train_runs",
    "write_page",
]

# Imported when they are used: parts of the lab need no more than torch, others not even that.
_PLACES = {
    "make_config": ("sgdf_lab.runs.config", "make"),
    **dict.fromkeys(("read_records", "write_page"), ("sgdf_lab.reports", "")),
    **dict.fromkeys(
        ("across", "evidence", "report", "sweep", "train", "train_runs"), ("sgdf_lab.api", "")
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Comparisons for people to read: tables in the terminal, and one page of tables and charts."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgdf.report.records import RunRecord

__all__ = ["read_records", "write_page"]


def read_records(*folders: str | Path) -> "list[RunRecord]":
    """The runs in these folders; a warning for each that cannot be read."""
    from sgdf.report.records import read_runs

    records, complaints = read_runs(map(Path, folders))
    for complaint in complaints:
        warnings.warn(f"skipped: {complaint}", stacklevel=2)
    return records


def write_page(
    path: str | Path, records: "Sequence[RunRecord]", *, title: str = "Comparison of optimizers"
) -> None:
    """Write tables and charts of these runs as one HTML page."""
    from sgdf.report import page
    from sgdf.report.statistics import compare_runs

    page.write(Path(path), records, compare_runs(records), title=title)

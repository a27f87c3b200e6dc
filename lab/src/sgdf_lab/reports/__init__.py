"""Comparisons for people to read: tables in the terminal, and one page of tables and charts."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgdf_lab.runs.records import RunRecord

__all__ = ["read_records", "write_page"]


def read_records(*folders: str | Path) -> "list[RunRecord]":
    """The runs in these folders; a warning for each that cannot be read.

    Args:
        folders: each a run, or a folder of runs.

    Examples:
        >>> from sgdf_lab.reports import read_records
        >>> records = read_records("runs")  # doctest: +SKIP
        >>> records[0].config.title, records[0].best  # doctest: +SKIP
        ('digits mlp sgdf lr 0.5 seed 0', 97.3)
    """
    from sgdf_lab.runs.records import read_runs

    records, complaints = read_runs(map(Path, folders))
    warn_of(complaints)
    return records


def warn_of(complaints: Sequence[str]) -> None:
    """About runs that were left out, from Python; the command prints a line for each."""
    for complaint in complaints:
        warnings.warn(f"skipped: {complaint}", stacklevel=3)


def write_page(
    path: str | Path, records: "Sequence[RunRecord]", *, title: str = "Comparison of optimizers"
) -> None:
    """Write tables and charts of these runs as one HTML page.

    Args:
        path: the file to write.
        records: of `read_records`.
        title: the heading of the page.

    Examples:
        >>> from sgdf_lab.reports import read_records, write_page
        >>> write_page("report.html", read_records("runs"))  # doctest: +SKIP
    """
    from sgdf_lab.reports import page
    from sgdf_lab.reports.comparison import compare_runs

    page.write(Path(path), records, compare_runs(records), title=title)

"""Comparisons as tables in a terminal."""

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from sgdf_lab.report import wording
from sgdf_lab.report.statistics import Comparison, ComparisonRow
from sgdf_lab.report.wording import TableColumn


def show(console: Console, comparisons: Iterable[Comparison]) -> None:
    for comparison in comparisons:
        console.print(as_rich(comparison, console.width), highlight=False)
        console.print()


def as_rich(comparison: Comparison, width: int) -> Group:
    """Title, table, summary and notes; columns that do not fit go into a second table."""
    rows = comparison.rows
    parts = fitting(rows, wording.columns(comparison), width)
    tables = [table(rows, part, width) for part in parts]
    unfinished = ((row.label, wording.unfinished_runs(row.cell)) for row in rows)
    return Group(
        Text(wording.title(comparison), "bold"),
        Text(wording.common_protocol(comparison.cells)),
        *(part for table in tables for part in ("", table)),
        "",
        *(Text(f"{label}: {words}") for label, words in unfinished if words),
        Text(wording.summary(comparison)),
        *(Text(note, "dim") for note in wording.notes(comparison)),
    )


def fitting(
    rows: Sequence[ComparisonRow], columns: Sequence[TableColumn], width: int
) -> Iterator[list[TableColumn]]:
    """The columns in as many parts as it takes to break no number; a title may be broken."""
    room = width - label_width(rows, width)
    part: list[TableColumn] = []
    used = 0
    for column in columns:
        needed = column_width(rows, column) + 3  # and the gap
        if part and used + needed > room:
            yield part
            part, used = [], 0
        part.append(column)
        used += needed
    if part:
        yield part


def column_width(rows: Sequence[ComparisonRow], column: TableColumn) -> int:
    return max(map(cell_len, [*column.title.split(), *(column.text(row) for row in rows)]))


def table(rows: Sequence[ComparisonRow], columns: Sequence[TableColumn], width: int) -> Table:
    built = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    labels = label_width(rows, width)
    built.add_column("", style="bold", width=labels, overflow="fold")
    least = {column.title: column_width(rows, column) for column in columns}
    full = sum(max(least[c.title], cell_len(c.title)) + 3 for c in columns)
    # rich would shrink columns below their numbers, if it had to break the titles itself.
    is_tight = labels + full > width
    for column in columns:
        needed = least[column.title]
        exact = needed if is_tight else None
        built.add_column(Text(column.title), justify="right", min_width=needed, width=exact)
    for row in rows:
        built.add_row(Text(wording.row_label(row)), *(Text(column.text(row)) for column in columns))
    return built


def label_width(rows: Sequence[ComparisonRow], width: int) -> int:
    """Of the longest label; where it would take most of the line, labels are wrapped."""
    return min(max(cell_len(wording.row_label(row)) for row in rows), max(24, width // 3))

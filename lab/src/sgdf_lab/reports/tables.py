"""The one kind of table, in a terminal and as markdown; the page has its own way to write it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgdf_lab.reports import wording
from sgdf_lab.reports.comparison import Comparison
from sgdf_lab.reports.labels import NO_BREAK
from sgdf_lab.reports.wording import TableRow
from sgdf_lab.support.pages import markdown_table
from sgdf_lab.support.tables import Column, as_rich

if TYPE_CHECKING:
    from rich.console import Console, Group


@dataclass(frozen=True)
class Table:
    """A title, the cells with the label of each row in front, and how to read it."""

    name: str  # by which a page refers to it
    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    caption: str = ""


def in_terminal(table: Table, width: int) -> "Group":
    """Columns that do not fit go into a second table below."""
    columns = [Column("", "label"), *map(Column, table.columns)]
    return as_rich(columns, table.rows, width, title=table.title, caption=table.caption)


def show(console: "Console", tables: Iterable[Table]) -> None:
    for table in tables:
        console.print(in_terminal(table, console.width), highlight=False)
        console.print()


def as_markdown(table: Table) -> str:
    header, *rows = ([*map(escaped, line)] for line in (("", *table.columns), *table.rows))
    body = markdown_table(header, rows)
    return f"**{table.title}**\n\n{body}\n\n{table.caption}".rstrip()


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace(NO_BREAK, " ")


# --- a comparison --------------------------------------------------------------------------------


def show_comparisons(console: "Console", comparisons: Iterable[Comparison]) -> None:
    for comparison in comparisons:
        console.print(comparison_in_terminal(comparison, console.width), highlight=False)
        console.print()


def comparison_in_terminal(comparison: Comparison, width: int) -> "Group":
    """Title, table, summary and notes."""
    from rich.console import Group
    from rich.text import Text

    columns, rows = wording.cells_of(comparison, comparison.rows)
    unfinished = ((row.label, wording.unfinished_runs(row.cell)) for row in comparison.rows)
    return Group(
        Text(wording.title(comparison), "bold"),
        Text(wording.common_protocol(comparison.cells)),
        "",
        in_terminal(Table("cells", "", columns, rows), width),
        "",
        *(Text(f"{label}: {words}") for label, words in unfinished if words),
        Text(wording.summary(comparison)),
        *(Text(note, "dim") for note in wording.notes(comparison)),
    )

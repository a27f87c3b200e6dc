"""Lines and tables that fit the terminal: columns that do not fit go into a second table below.

No number is broken or cut. Where room is short, titles and text are wrapped; where that is not
enough, the table is split, and its labels are repeated.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, Group

GAP = 2  # between two columns
TEXT = 24  # the least room of a text that is longer


def say(console: "Console", text: str) -> None:
    """Print a line as it is, without markup or colours; a terminal's width breaks no word of it.

    A terminal would break a number in two where a line is full.
    """
    if console.is_terminal:
        text = whole_words(text, console.width)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def whole_words(text: str, width: int) -> str:
    """The text in lines of this width, as far as its words are not longer."""
    lines = (
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for parts in lines for part in parts)


class Column(NamedTuple):
    title: str
    kind: Literal["label", "text", "number"] = "number"  # labels come first; text may be wrapped


class Part(NamedTuple):
    """Columns that stand side by side, by their numbers, and their widths."""

    columns: list[int]
    widths: list[int]


Rows = Sequence[Sequence[str]]


def fitting(columns: Sequence[Column], rows: Rows, width: int) -> Iterator[Part]:
    """The columns in as many parts as it takes, with titles and text wrapped.

    >>> columns = [Column("", "label"), Column("loss"), Column("time in seconds")]
    >>> rows = [["sgdf", "0.125", "17.25"]]
    >>> [part.columns for part in fitting(columns, rows, 20)]
    [[0, 1, 2]]
    >>> [part.columns for part in fitting(columns, rows, 16)]
    [[0, 1], [0, 2]]
    """
    least = [least_width(c, cells_of(rows, i), width) for i, c in enumerate(columns)]
    labels = [i for i, column in enumerate(columns) if column.kind == "label"]
    part = list(labels)
    for i in range(len(labels), len(columns)):
        if len(part) > len(labels) and total([least[j] for j in (*part, i)]) > width:
            yield Part(part, widened(part, least, columns, rows, width))
            part = list(labels)
        part.append(i)
    yield Part(part, widened(part, least, columns, rows, width))


def cells_of(rows: Rows, column: int) -> list[str]:
    return [row[column] for row in rows]


def total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def least_width(column: Column, cells: Sequence[str], width: int) -> int:
    longest = longest_of(cells)
    if column.kind == "text":
        longest = min(longest, TEXT)
    elif column.kind == "label":
        longest = min(longest, max(TEXT, width // 3))
    return max(longest, longest_of(column.title.split()))


def longest_of(texts: Sequence[str]) -> int:
    return max((columns_of(line) for text in texts for line in text.split("\n")), default=0)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes; letters of East Asia take two."""
    from rich.cells import cell_len  # what shows no table does without rich

    return cell_len(text)


def widened(
    part: Sequence[int], least: Sequence[int], columns: Sequence[Column], rows: Rows, width: int
) -> list[int]:
    """Give the room that is left to what would be wrapped, from the left."""
    widths = [least[i] for i in part]
    room = width - total(widths)
    for place, i in enumerate(part):
        whole = longest_of([columns[i].title, *cells_of(rows, i)])
        more = max(0, min(whole - widths[place], room))
        widths[place] += more
        room -= more
    return widths


def as_rich(
    columns: Sequence[Column],
    rows: Rows,
    width: int,
    *,
    title: str = "",
    caption: str = "",
    bold: Sequence[int] = (),
    lines: bool = False,
) -> "Group":
    """A title, the table in parts, a caption; the rows of `bold` stand out."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown: list[Text | Table | str] = [Text(title, "bold"), ""] if title else []
    for part in fitting(columns, rows, width):
        table = Table(
            box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False,
            show_lines=lines,
        )  # fmt: skip
        for i, needed in zip(part.columns, part.widths, strict=True):
            justify: Literal["right", "left"] = "right" if columns[i].kind == "number" else "left"
            table.add_column(Text(columns[i].title), justify=justify, width=needed, overflow="fold")
        for number, row in enumerate(rows):
            style = "bold" if number in bold else None
            table.add_row(*(Text(row[i]) for i in part.columns), style=style)
        shown += [table, ""]
    if caption:
        shown += [Text(caption, "dim")]
    elif shown:
        shown.pop()
    return Group(*shown)

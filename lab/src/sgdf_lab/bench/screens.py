"""Terminal output: tables and progress, with rich where it is installed."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sgdf_lab.bench.costs import disturbed
from sgdf_lab.support import tables
from sgdf_lab.support.tables import Column

HEADER = (
    *("optimizer", "path", "params", "state B/param", "ms", "± IQR/2"),
    *("GB/s", "% of copy", "x SGD fused", "x AdamW fused", "extra mem %"),
)
TEXT_COLUMNS = 3  # the first columns of HEADER; the others are numbers
FULL_WIDTH = 200  # of what is written to a file


class PlainScreen:
    """Plain lines, used if rich is not installed."""

    @property
    def width(self) -> int:
        """Of the terminal; a file needs no wrapping."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else FULL_WIDTH

    def line(self, text: str) -> None:
        print(text, flush=True)

    def table(self, title: str, cells: Sequence[Sequence[str]]) -> None:
        self.line(f"\n{title}")
        columns, rows = shown_columns(cells, self.width)
        for line in tables.as_lines(columns, rows, self.width):
            self.line(line)

    @contextlib.contextmanager
    def progress(self, name: str, _total: int) -> Iterator[Callable[[str], None]]:
        last = ""

        def tick(doing: str) -> None:
            nonlocal last
            if doing != last:
                print(f"{name}: {doing}", file=sys.stderr, flush=True)
            last = doing

        yield tick


class RichScreen(PlainScreen):
    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = FULL_WIDTH

    @property
    def width(self) -> int:
        return self.console.width

    def line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def table(self, title: str, cells: Sequence[Sequence[str]]) -> None:
        columns, rows = shown_columns(cells, self.width)
        bold = [number for number, row in enumerate(cells) if row[:2] == ["SGDF", "fused"]]
        self.console.print()
        self.console.print(tables.as_rich(columns, rows, self.width, title=title, bold=bold))
        self.console.print()

    @contextlib.contextmanager
    def progress(self, name: str, total: int) -> Iterator[Callable[[str], None]]:
        if not self.console.is_terminal:  # where rich would print the bar once, at its end
            with super().progress(name, total) as tick:
                yield tick
            return
        from rich.progress import Progress

        with Progress(console=self.console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda doing: progress.update(task, advance=1, description=f"{name}: {doing}")


def shown_columns(
    cells: Sequence[Sequence[str]], width: int
) -> tuple[list[Column], list[Sequence[str]]]:
    """All columns where there is room. Else the labels are one, ms has its spread, GB/s is left
    out: the share of a copy tells the same.
    """
    columns = [Column(name, "label") for name in HEADER[:TEXT_COLUMNS]]
    columns += [Column(name) for name in HEADER[TEXT_COLUMNS:]]
    widths = [max(map(len, column)) for column in zip(HEADER, *cells, strict=True)]
    if tables.total(widths) <= width:
        return columns, list(cells)
    folded = [
        Column("optimizer, path", "label"),
        *map(Column, ("state B/param", "ms ± IQR/2", *HEADER[7:])),
    ]
    return folded, [folded_row(row) for row in cells]


def folded_row(row: Sequence[str]) -> list[str]:
    optimizer, path, params, state, ms, spread, _, *rest = row
    label = f"{optimizer} {path}" + (f", {params} parameters" if params != "fp32" else "")
    return [label, state, ms if spread == "-" else f"{ms} ± {spread}", *rest]


def open_screen() -> PlainScreen:
    try:
        return RichScreen()
    except ModuleNotFoundError:
        return PlainScreen()


def show_parameter_list(measured: dict[str, Any], device: str, screen: PlainScreen) -> None:
    """Show the table of one list, and below it the reasons of failures."""
    copy = measured["copy"]
    tensors = f"{measured['tensors']} tensor" + "s" * (measured["tensors"] > 1)
    title = f"{measured['title']}: {tensors}, {measured['parameters']:,} parameters"
    title += f"; a copy moves {copy['gb_per_s']:,.1f} ± {copy['gb_per_s_iqr'] / 2:.1f} GB/s"
    reasons: list[str] = []
    cells = []
    for row in measured["rows"]:
        if row["error"] and row["error"] not in reasons:
            reasons.append(row["error"])
        failed = f"failed ({reasons.index(row['error']) + 1})" if row["error"] else None
        cells.append(cells_of(row, failed))
    screen.table(title, cells)
    if disturbed(device, measured["rows"]):
        screen.line("Other programs kept CPUs busy meanwhile: these times can be far too long.")
    for number, reason in enumerate(reasons, 1):
        screen.line(f"({number}) {reason}")


def cells_of(row: dict[str, Any], failed: str | None) -> list[str]:
    def number(value: float | None, form: str = ".2f") -> str:
        return "-" if value is None else format(value, form)

    ms, half_iqr = row["ms"], None if row["ms_iqr"] is None else row["ms_iqr"] / 2
    places = 3 if ms is None or ms < 10 else 2 if ms < 100 else 1
    fraction = row["of_copy"]
    return [
        row["optimizer"],
        row["path"],
        row["params_dtype"],
        number(row["state_bytes"]),
        failed or number(ms, f".{places}f"),
        number(half_iqr, f".{places}f"),
        number(row["gb_per_s"], ",.1f"),
        number(None if fraction is None else 100 * fraction, ".1f"),
        number(row["times_sgd_fused"]),
        number(row["times_adamw_fused"]),
        number(row["extra_memory_percent"]),
    ]

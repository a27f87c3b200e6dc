"""Terminal output: tables and progress, with rich where it is installed."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sgdf.bench.costs import disturbed

HEADER = (
    *("optimizer", "path", "params", "state B/param", "ms", "± IQR/2"),
    *("GB/s", "% of copy", "x SGD fused", "x AdamW fused", "extra mem %"),
)
TEXT_COLUMNS = 3  # the first columns of HEADER; the others are numbers


class PlainScreen:
    """Plain lines, used if rich is not installed."""

    def line(self, text: str) -> None:
        print(text, flush=True)

    def table(self, title: str, cells: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(HEADER, *cells, strict=True)]
        self.line(f"\n{title}")
        for row in (HEADER, *cells):
            padded = [
                cell.ljust(width) if index < TEXT_COLUMNS else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.line("  ".join(padded).rstrip())

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
            self.console.width = 200  # a file needs no wrapping

    def line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def table(self, title: str, cells: Sequence[Sequence[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for index, name in enumerate(HEADER):
            table.add_column(name, justify="left" if index < TEXT_COLUMNS else "right")
        for row in cells:
            table.add_row(*row, style="bold" if row[:2] == ["SGDF", "fused"] else None)
        self.console.print(table)

    @contextlib.contextmanager
    def progress(self, name: str, total: int) -> Iterator[Callable[[str], None]]:
        from rich.progress import Progress

        with Progress(console=self.console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda doing: progress.update(task, advance=1, description=f"{name}: {doing}")


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

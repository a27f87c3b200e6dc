"""A count of the work done, with a progress bar if there is a terminal to show it."""

import contextlib
from collections.abc import Iterator
from typing import Any


class Counter:
    """Counts units of work, and advances a progress bar if it has one."""

    def __init__(self, progress: Any = None) -> None:
        self.done = 0
        self.progress = progress
        self.bar = progress.add_task("") if progress else None

    def begin(self, stage: str, total: int | None = None) -> None:
        """Start a stage of `total` units; None if the number is not known in advance."""
        if self.progress:
            self.progress.reset(self.bar, description=stage, total=total)

    def tick(self, units: int = 1) -> None:
        self.done += units
        if self.progress:
            self.progress.advance(self.bar, units)


@contextlib.contextmanager
def counting(unit: str, shown: bool) -> Iterator[Counter]:
    """A counter of `unit`, with a bar if `shown`."""
    if not shown:
        yield Counter()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, transient=True) as progress:
        yield Counter(progress)

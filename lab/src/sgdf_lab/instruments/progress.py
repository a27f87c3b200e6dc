"""A count of the work done, with a progress bar if there is a terminal to show it."""

import contextlib
from collections.abc import Iterator
from typing import Any


class Counter:
    """Counts units of work, and advances a progress bar if it has one."""

    def __init__(self, progress: Any = None) -> None:
        self.done = 0
        self.progress = progress
        self.bar = progress.add_task("", total=None, count="") if progress else None

    def begin(self, stage: str, total: int | None = None) -> None:
        """Start a stage of `total` units; None if the number is not known in advance."""
        if self.progress:
            self.progress.reset(self.bar, description=stage)
            self._show(total)

    def tick(self, units: int = 1) -> None:
        self.done += units
        if self.progress:
            self.progress.advance(self.bar, units)
            self._show(self.progress.tasks[0].total)

    def _show(self, total: float | None) -> None:
        """A total that was passed is none: a method may take more steps than it was expected to."""
        (task,) = self.progress.tasks
        # `update` and `reset` take None for "as before".
        task.total = None if total is not None and task.completed > total else total
        of_total = "" if task.total is None else f"/{task.total:.0f}"
        self.progress.update(self.bar, count=f"{task.completed:.0f}{of_total}")


@contextlib.contextmanager
def counting(unit: str, shown: bool) -> Iterator[Counter]:
    """A counter of `unit`, with a bar if `shown`."""
    if not shown:
        yield Counter()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, transient=True) as progress:
        yield Counter(progress)

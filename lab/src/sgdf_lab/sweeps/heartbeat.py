"""How far the runs of a sweep are within their epochs, told through files.

A run's process may be on another machine. All share the folder of the runs: while a run trains, a
small file there, beside the runs, says how many epochs are done. Short runs write none.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.progress import MessagesOnly

INTERVAL = 5.0  # seconds between two writes


class Heartbeat(MessagesOnly):
    """Passes messages on, and keeps the files."""

    def __init__(self, notify: Callable[[str], None], out: Path) -> None:
        super().__init__(notify)
        self.out = out
        self.written: dict[int, float] = {}  # when, by the id of the config

    def step(self, config: Config, done: int, per_epoch: int) -> None:
        now = time.monotonic()
        if now - self.written.setdefault(id(config), now) < INTERVAL:
            return
        self.written[id(config)] = now
        with contextlib.suppress(OSError):  # it only informs
            file_of(config, self.out).write_text(f"{done / per_epoch:.4f}")

    def ended(self, config: Config, status: str) -> None:
        remove(config, self.out)


def file_of(config: Config, out: Path) -> Path:
    return out / f".progress-{config.digest[:16]}"


def epochs_told(config: Config, out: Path) -> float:
    """What the file says; 0 if there is none."""
    try:
        return float(file_of(config, out).read_text())
    except (OSError, ValueError):
        return 0.0


def remove(config: Config, out: Path) -> None:
    with contextlib.suppress(OSError):
        file_of(config, out).unlink(missing_ok=True)

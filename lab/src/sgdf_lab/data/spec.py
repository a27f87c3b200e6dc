"""What every dataset of the lab has, however it is stored."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(ABC):
    """What is known about a dataset without reading it, and how to find and fetch it."""

    name: str
    train: int  # number of images
    test: int
    classes: int
    order: int = 1000  # position in lists

    @abstractmethod
    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        """Whether it is in the data folder ("yes", "half" or "no"), and where, or how to get it.

        Looks at the names of files alone.
        """

    @abstractmethod
    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        """Download it into the data folder, unless it is there; returns a sentence to print."""

"""Where commands print: on a terminal in its width, in a file or pipe in full."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

FULL_WIDTH = 400  # no table is wider; `COLUMNS=80 sgdf report runs | less` is narrower on request


def open_console(*, quiet: bool = False) -> "Console":
    from rich.console import Console

    console = Console(quiet=quiet, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FULL_WIDTH
    return console

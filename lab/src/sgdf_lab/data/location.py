"""The data folder, and the command that fetches a dataset into it."""

import os
import shlex
from pathlib import Path


def data_folder(folder: str | Path | None) -> Path:
    """The given folder, or SGDF_DATA, or ~/.cache/sgdf/data."""
    return Path(folder or os.environ.get("SGDF_DATA") or "~/.cache/sgdf/data").expanduser()


def fetch_command(name: str, folder: Path) -> str:
    """The command that puts a dataset into the folder."""
    option = "" if folder == data_folder(None) else f" --data-dir {shlex.quote(str(folder))}"
    return f"sgdf data fetch {name}{option}"

"""What the subcommands leave behind: numbers with their origin as JSON, figures as PNG and SVG."""

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.options import path, say
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    import torch
    from rich.console import Console


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=path, default=Path("analysis"), metavar="DIR", help="default %(default)s"
    )


def origin(options: argparse.Namespace, device: "torch.device") -> dict[str, Any]:
    """The command, commit and machine that results come from."""
    from sgdf_lab.support.provenance import commit, machine

    return {"command": options.typed, "commit": commit(), "machine": machine(device.type)}


def save_numbers(console: "Console", file: Path, values: dict[str, Any]) -> None:
    """Write JSON, with arrays as lists."""
    from sgdf_lab.support.files import explained, write_atomically

    with explained(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(values, default=lambda array: array.tolist()) + "\n")
    say(console, f"  in {file}")


def save_figure(console: "Console", figure: Any, stem: Path) -> None:
    from sgdf_lab.support import figures
    from sgdf_lab.support.files import explained

    with explained(stem.parent):
        files = figures.write(figure, stem)
    for file in files:
        say(console, f"  in {file}")


@contextlib.contextmanager
def refusals(about: str) -> Iterator[None]:
    """Turn what an instrument refuses into a user error that begins with `about`."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{about}: {error}") from error

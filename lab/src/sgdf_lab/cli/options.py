"""What commands share: options and the objects that they describe, the layout of help, the console.

Importing this does not import torch: heavy imports wait until a command runs.
"""

import argparse
import codecs
import contextlib
import io
import math
import os
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sgdf_lab.runs.config import LONGEST_NAME
from sgdf_lab.support.errors import one_line
from sgdf_lab.support.tables import say as say

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from sgdf_lab.runs.session import RunContext

WIDTH = 78  # of help that is wrapped here; argparse itself follows the terminal
FULL_WIDTH = 400  # no table is wider; `COLUMNS=80 sgdf report runs | less` is narrower on request
LONGEST_PATH = 4000  # bytes; Linux allows 4096

#: What `add_parser` is called on; argparse has no public name for it.
Commands = Any

#: A parser, or a group of its options.
Options = Any


def positive(text: str) -> int:
    """The type of an option that counts something."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value


def number(text: str) -> float:
    """The type of an option that measures something; not NaN, and not infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a number")
    return value


def path(text: str) -> Path:
    """The type of an option that names a file or a folder."""
    longest = max((len(os.fsencode(part)) for part in Path(text).parts), default=0)
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file or folder")
    if longest > LONGEST_NAME or len(os.fsencode(text)) > LONGEST_PATH:
        raise argparse.ArgumentTypeError(
            f"{one_line(text, 60)} is too long: a name may have {LONGEST_NAME} bytes, and a path "
            f"{LONGEST_PATH}"
        )
    return Path(text)


def add_device(parser: Options) -> None:
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda if available)")


def add_data_dir(parser: Options) -> None:
    parser.add_argument(
        "--data-dir",
        type=path,
        metavar="DIR",
        help="where the datasets are (default $SGDF_DATA or ~/.cache/sgdf/data); for the task "
        "images the folder of your own",
    )


def add_run_options(parser: argparse.ArgumentParser) -> Options:
    """The options of every command that trains; returns the group of those about computing."""
    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--out", type=path, default=Path("runs"), metavar="DIR",
        help="where to write the runs (default %(default)s)")  # fmt: skip
    add_data_dir(files)
    add("--keep", type=positive, metavar="N",
        help="keep the initial weights and those of every Nth epoch, for sgdf analyze")  # fmt: skip
    add("--no-checkpoints", action="store_true",
        help="for many short runs: save no weights; a stopped run begins again")  # fmt: skip
    add("--tensorboard", action="store_true", help="write TensorBoard event files into the runs")
    add("--wandb", action="store_true",
        help="log to Weights & Biases, offline (WANDB_MODE=online sends it)")  # fmt: skip
    computing = parser.add_argument_group("computing")
    add_device(computing)
    computing.add_argument(
        "--no-compile", action="store_true", help="on a GPU: start at once, but train slower"
    )
    return computing


def context_from(options: argparse.Namespace, device: "torch.device") -> "RunContext":
    from sgdf_lab.runs.session import RunContext

    return RunContext(
        out=options.out,
        device=device,
        data_dir=options.data_dir,
        compile=not options.no_compile,
        command=options.typed,
        tensorboard=options.tensorboard,
        wandb=options.wandb,
        keep=options.keep,
        checkpoints=not options.no_checkpoints,
    )


def open_console(*, quiet: bool = False) -> "Console":
    """Where commands print: on a terminal in its width, in a file or pipe in full."""
    from rich.console import Console

    console = Console(quiet=quiet, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FULL_WIDTH
    return console


# --- the layout of help --------------------------------------------------------------------------


class Layout(argparse.RawDescriptionHelpFormatter):
    """Breaks no name at its hyphen, and leaves the text below the options as it is."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def listed(title: str, names: Iterable[str]) -> str:
    """A list of names below a title.

    >>> print(listed("tasks", ["digits", "cifar10"]))
    tasks:
      digits, cifar10
    """
    return f"{title}:\n{wrapped(', '.join(names))}"


def listed_by(title: str, names: dict[str, tuple[str, ...]]) -> str:
    """Lists of names, each behind what it belongs to."""
    lines = (wrapped(f"{key}: {', '.join(values)}", more="    ") for key, values in names.items())
    return "\n".join((f"{title}:", *lines))


def examples(*lines: tuple[str, str]) -> str:
    """What to type, and what it does."""
    return "examples:\n" + "\n".join(f"  {typed}\n      {what}" for typed, what in lines)


def wrapped(text: str, more: str = "  ") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="  ", subsequent_indent=more, break_on_hyphens=False
    )


# --- streams that cannot show every character ----------------------------------------------------

# With PYTHONIOENCODING=ascii, or a path that is not valid UTF-8, a print would otherwise raise
# UnicodeEncodeError in the middle of a command.

HANDLER = "sgdf-fallback"

#: What is written instead of a character that the encoding lacks; "?" for all others.
FALLBACKS = {
    "±": "+-",
    "−": "-",
    "–": "-",
    "×": "x",
    "✓": "*",
    "…": "...",
    "\N{NO-BREAK SPACE}": " ",
    "≤": "<=",
    "≥": ">=",
    "━": "-",
    "╸": "-",
    "╺": "-",
}


def fallback(error: UnicodeError) -> tuple[str, int]:
    """A codec error handler, for encoding."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(FALLBACKS.get(character, "?") for character in missing), error.end


codecs.register_error(HANDLER, fallback)


def make_printable(*streams: TextIO) -> None:
    """Let these streams replace what they cannot encode, rather than raise."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):  # a test or a notebook may have another
            # A file that became a pipe cannot tell its position; the handler is set even then.
            with contextlib.suppress(OSError):
                stream.reconfigure(errors=HANDLER)

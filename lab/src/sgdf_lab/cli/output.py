"""What the terminal shows: the layout of help, and characters that it may lack."""

import argparse
import codecs
import contextlib
import io
import textwrap
from collections.abc import Iterable
from typing import TextIO

WIDTH = 78  # of what is wrapped here; argparse itself follows the terminal


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

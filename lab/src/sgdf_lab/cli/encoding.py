"""Output for terminals and files that cannot show every character.

With PYTHONIOENCODING=ascii, or a path that is not valid UTF-8, a print would otherwise raise
UnicodeEncodeError in the middle of a command.
"""

import codecs
import contextlib
import io
from typing import TextIO

HANDLER = "sgdf-fallback"

#: What is written in the place of a character that the encoding lacks; "?" for all others.
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

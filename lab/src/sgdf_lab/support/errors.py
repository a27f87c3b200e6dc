"""Errors that a user can correct: each is one sentence that says how."""

import difflib
import re
from collections.abc import Iterable

#: What ends a line for `str.splitlines`, with the white space around it.
BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+\s*")


class UserError(Exception):
    """Shown as it is, without a traceback."""


class Held(UserError):
    """Another process holds the lock and may be about to exit."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An unknown name, answered with the names near to it, or with all."""
    known = sorted(set(known))
    near = difflib.get_close_matches(str(name), known, n=3)
    if near:
        return UserError(f"there is no {kind} {name!r}: did you mean {' or '.join(near)}?")
    return UserError(f"there is no {kind} {name!r}; there are {', '.join(known)}")


def message_of(error: BaseException) -> str:
    """What an exception says, in one line; its own `__str__` may fail or return several lines."""
    try:
        text = str(error)
    except Exception:
        text = "an exception that cannot be shown"
    return one_line(text)


def reason_of(error: BaseException) -> str:
    """What an exception of code that is not ours says: its message, or its type if it has none."""
    if isinstance(error, SystemExit):
        return one_line(f"the code called sys.exit({error.code!r})")
    return message_of(error) or one_line(type(error).__name__)


def describe(error: BaseException) -> str:
    """Any exception in one line: a `UserError` as it is, others with their type."""
    if isinstance(error, UserError):
        return message_of(error)
    if isinstance(error, SystemExit):
        return reason_of(error)
    return one_line(f"{type(error).__name__}: {message_of(error)}").removesuffix(":")


def one_line(text: str, limit: int = 2000) -> str:
    """Replace line breaks by spaces, and leave out the middle of what is too long.

    >>> one_line("two\\n  lines")
    'two lines'
    """
    line = re.sub(BREAKS, " ", text.strip())
    return line if len(line) <= limit else f"{line[: limit // 2]} ... {line[-limit // 2 :]}"


NO_BREAK = "\N{NO-BREAK SPACE}"


def visible(text: object) -> str:
    """Replace characters that move the cursor, hide text or cannot be encoded."""
    shown = (
        c if c.isprintable() or c == NO_BREAK else "\N{REPLACEMENT CHARACTER}" for c in str(text)
    )
    return "".join(shown)

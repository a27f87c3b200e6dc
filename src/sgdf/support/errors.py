"""Errors that a user can correct: each is one sentence that says how."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Shown as it is, without a traceback."""


class Held(UserError):
    """Another process holds the lock and may be about to exit."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An unknown name, answered with the names near to it, or with all."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=3)
    if near:
        return UserError(f"there is no {kind} {name!r}: did you mean {' or '.join(near)}?")
    return UserError(f"there is no {kind} {name!r}; there are {', '.join(known)}")

"""Mistakes a user can put right: each is one sentence that says how."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Shown as it is, without a traceback."""


class Held(UserError):
    """Another process is at it, which may be about to end."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """A name that is none of the known ones, answered with the near ones, or else with all."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=3)
    if near:
        return UserError(f"there is no {kind} {name!r}: did you mean {' or '.join(near)}?")
    return UserError(f"there is no {kind} {name!r}; there are {', '.join(known)}")

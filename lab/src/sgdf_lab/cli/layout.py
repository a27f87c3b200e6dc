"""How help is laid out: wrapped at blanks alone, with lists of names and examples at its end."""

import argparse
import textwrap
from collections.abc import Iterable

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


def listed_by(title: str, names: "dict[str, tuple[str, ...]]") -> str:
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

"""Pages of the documentation whose numbers are made from records.

A block stands between two comments, ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``: some
words within a line, or lines of its own.
"""

import re
from collections.abc import Mapping, Sequence

BLOCK = re.compile(r"<!-- generated: ([^\n]+?) -->(\n?)(.*?)\n?<!-- end of \1 -->", re.DOTALL)


def blocks_of(page: str) -> dict[str, str]:
    """What stands between the comments, by name.

    >>> blocks_of("It takes <!-- generated: time -->3 ms<!-- end of time -->.")
    {'time': '3 ms'}
    """
    return {found[1]: found[3] for found in BLOCK.finditer(page)}


def filled(page: str, contents: Mapping[str, str]) -> str:
    """The page with these blocks replaced. Each has to have a place.

    >>> filled("It takes <!-- generated: time -->3 ms<!-- end of time -->.", {"time": "4 ms"})
    'It takes <!-- generated: time -->4 ms<!-- end of time -->.'
    """
    for name in contents.keys() - blocks_of(page).keys():
        raise ValueError(f"the page has no place for {name!r}")

    def replaced(found: re.Match[str]) -> str:
        name, line = found[1], found[2]
        content = contents.get(name, found[3])
        return f"<!-- generated: {name} -->{line}{content}{line}<!-- end of {name} -->"

    return BLOCK.sub(replaced, page)


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: int | None = None
) -> str:
    """A table in Markdown; columns from number `right` on are aligned to the right.

    >>> print(markdown_table(["", "loss"], [["AdamW", "2.1"]]))
    |  | loss |
    | --- | --- |
    | AdamW | 2.1 |
    """
    left = len(header) if right is None else right
    lines = [header, ["---"] * left + ["---:"] * (len(header) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

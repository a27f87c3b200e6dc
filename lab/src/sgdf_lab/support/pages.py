"""Pages of the documentation whose tables are made from records.

A page keeps each of them between two comments, ``<!-- NAME -->`` and ``<!-- end of NAME -->``.
"""

from collections.abc import Mapping, Sequence


def filled(page: str, contents: Mapping[str, str]) -> str:
    """The page with each block between its comments. Every block has to have a place."""
    for name, content in contents.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no place for {name!r}")
        page = f"{before}{begin}{content}\n{end}{after}"
    return page


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(markdown_table(["", "loss"], [["AdamW", "2.1"]]))
    |  | loss |
    | --- | --- |
    | AdamW | 2.1 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

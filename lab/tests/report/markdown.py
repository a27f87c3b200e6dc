"""Find a table's row, a bullet or a sentence of a Markdown text, and the numbers in it."""

import re
from collections.abc import Iterable


def table(text: str, header: str) -> dict[str, list[str]]:
    """The cells of each row by the row's label; the table is the one with this header line."""
    head = re.escape(header).replace(r"\ ", " +")
    found = re.split(rf"{head}\n\| ?---", text, maxsplit=1)
    assert len(found) == 2, f"no table {header}"
    rest = found[1]
    rows = [row for row in rest.partition("\n\n")[0].splitlines() if row.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    labels = [label for label, *_ in cells]
    assert len(set(labels)) == len(labels), f"two rows of {header} have one label"
    return {label: values for label, *values in cells}


def section(text: str, heading: str) -> str:
    """What stands between a heading and the next one of its level or above."""
    level = heading.split()[0]
    _, start, rest = f"\n{text}".partition(f"\n{heading}\n")
    assert start, f"no heading {heading}"
    return re.split(rf"(?m)^#{{1,{len(level)}}} ", rest)[0]


def bullet(text: str, words: str) -> str:
    """The one bullet, or paragraph, with these words; on one line."""
    blocks = (" ".join(block.split()) for block in re.split(r"\n(?=- )|\n\n", text))
    return the_one(words, blocks)


def sentence(text: str, words: str) -> str:
    """The one sentence with these words; on one line."""
    return the_one(words, re.split(r"(?<=[.?!*)]) (?=[A-Z*])", bullet(text, words)))


def the_one(words: str, texts: Iterable[str]) -> str:
    matching = [text for text in texts if words in text]
    assert len(matching) == 1, f"{len(matching)} places with {words!r}"
    return matching[0]


def decimals(text: str) -> list[str]:
    """The numbers with a decimal point, as they are written.

    >>> decimals("from 0.34 behind to 0.26 ahead, in 3 runs")
    ['0.34', '0.26']
    """
    return re.findall(r"\d+\.\d+", text)

"""The numbers of docs/reliability.md are those of results/torture.json."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
FILE = ROOT / "results" / "torture.json"
RECORD = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else None
GOOD = ("same bytes", "within rounding", "one sentence")


def test_without_a_record_the_page_says_so():
    assert ("No record is published yet." in PAGE) == (RECORD is None)


def cells_below(header: str) -> list[list[str]]:
    """The cells of the table with this header, row by row."""
    _, found, rest = PAGE.partition(f"{header}\n")
    assert found, header
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]


def counts(rows: list[dict]) -> list[int]:
    good = [sum(row["outcomes"][word] for row in rows) for word in GOOD]
    bugs = sum(n for row in rows for word, n in row["outcomes"].items() if word not in GOOD)
    return [sum(row["cases"] for row in rows), sum(row["faults"] for row in rows), *good, bugs]


def as_numbers(cells: list[str]) -> list[int]:
    return [int(cell.replace(",", "")) for cell in cells]


def test_the_table_is_that_of_the_record():
    if RECORD is None:
        return
    header = "| kind | what | cases | faults | same bytes | within rounding | one sentence | bugs |"
    *shown, total = cells_below(header)
    assert len(shown) == len(RECORD["rows"])
    for cells, row in zip(shown, RECORD["rows"], strict=True):
        assert cells[:2] == [row["kind"], row["what"]]
        assert as_numbers(cells[2:]) == counts([row]), row["what"]
        assert row["cases"] == sum(row["outcomes"].values())
    assert as_numbers(total[2:]) == counts(RECORD["rows"])


def test_the_gradients_are_those_of_the_record():
    if RECORD is None:
        return
    header = "| path | steps | elements | largest distance (eps) | not finite, float64 is |"
    rows = [row for row in RECORD["rows"] if row["kind"] == "gradients"]
    shown = cells_below(header)
    assert len(shown) == len(rows) > 0
    for (path, steps, elements, distance, infinite), row in zip(shown, rows, strict=True):
        numbers = row["numbers"]
        assert path == row["what"]
        measured = [numbers["steps"], numbers["elements"], numbers["not finite"]]
        assert as_numbers([steps, elements, infinite]) == measured
        assert distance == f"{numbers['largest distance']:.1f}"


def test_the_record_says_how_it_was_made_and_is_complete():
    if RECORD is None:
        return
    assert RECORD["command"].startswith("python lab/tests/torture")
    assert re.fullmatch("[0-9a-f]{40}", RECORD["commit"])
    assert RECORD["machine"]["device"]
    assert RECORD["complete"]


def test_no_bug_is_published():
    if RECORD is None:
        return
    assert RECORD["bugs"] == []
    assert counts(RECORD["rows"])[-1] == 0

"""The published record of the torture matrix is complete and has no bug."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("rich")

from torture.outcome import GOOD
from torture.runner import KINDS

RECORD = Path(__file__).parents[3] / "results" / "torture.json"


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_record_says_how_it_was_made_and_is_complete(record):
    assert "tests/torture" in record["command"]
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    assert record["machine"]["device"]
    assert record["complete"]


def test_every_kind_and_every_row_had_its_turn(record):
    assert {row["kind"] for row in record["rows"]} == {*KINDS}
    for row in record["rows"]:
        assert 0 < row["tried"] <= row["planned"], row["what"]
        assert row["tried"] <= row["cases"], row["what"]


def test_no_bug_is_published(record):
    assert record["bugs"] == []
    for row in record["rows"]:
        assert row["cases"] == sum(row["outcomes"].values())
        assert row["cases"] == sum(row["outcomes"][word] for word in GOOD), row["what"]

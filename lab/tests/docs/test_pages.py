"""Every number in a generated block of the README and the docs is that of its record."""

import copy
import json
import re

import pytest

import pages
from sgdf_lab.support.pages import blocks_of, filled


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_regenerating_the_blocks_changes_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert pages.regenerated(page, text) == text


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_no_block_breaks_its_sentence(page):
    """A comment at the beginning of a line ends a paragraph."""
    assert not re.findall(r"(?m)^<!-- generated: [^>]*-->\S", page.read_text(encoding="utf-8"))


def test_the_defaults_are_those_of_the_signature():
    now = "| setting | default | |\n| --- | --- | --- |\n| `lr`, `betas` | 7 | words |\n"
    assert "| `lr`, `betas` | 0.5, (0.9, 0.999) | words |" in pages.defaults_table("SGDF", now)
    with pytest.raises(KeyError, match="momentum"):
        pages.defaults_table("SGDF", now.replace("betas", "momentum"))


def test_the_settings_have_a_table_per_optimizer_those_of_transformers_first():
    text = (pages.ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    tables = [name for name in blocks_of(text) if name.startswith("defaults of ")]
    assert tables == [f"defaults of {name}" for name in pages.WITH_DEFAULTS]


def test_another_record_makes_another_page(monkeypatch):
    page = pages.ROOT / "docs" / "speed.md"
    slower = copy.deepcopy(pages.record("bench-step-cuda.json"))
    for row in slower["lists"]["gpt"]["rows"]:
        row["ms"] *= 1.5 if row["name"] == "sgdf-fused" else 1
    true = pages.record
    monkeypatch.setattr(
        pages, "record", lambda name: slower if name == "bench-step-cuda.json" else true(name)
    )
    before = blocks_of(page.read_text(encoding="utf-8"))
    after = blocks_of(pages.regenerated(page, page.read_text(encoding="utf-8")))
    assert {n for n in before if before[n] != after[n]} == {
        "steps on a GPU",
        "SGDF over AdamW, GPT",
    }


def test_what_was_not_measured_is_not_shown(tmp_path):
    file = tmp_path / "record.json"
    assert "not been measured" in pages.eight_bit_table(file)
    row = {"optimizer": "AdamW8bit", "path": "torchao", "state_bytes": 2.03, "ms": 12.345}
    failed = {**row, "path": "bitsandbytes", "ms": None}
    file.write_text(json.dumps({"lists": {"one-tensor": {"rows": [row, failed]}}}))
    assert "| AdamW8bit torchao | 2.0 | 12.3 |" in pages.eight_bit_table(file)
    assert "AdamW8bit bitsandbytes" not in pages.eight_bit_table(file)


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for 'errors'"):
        filled("<!-- generated: errors -->\n| 1 |\n", {"errors": "| 2 |"})

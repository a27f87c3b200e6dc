"""The page of recipes shows lines of the scripts, and names every script and its test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SECTIONS = {
    section.splitlines()[0]: section
    for section in PAGE.split("\n## ")[1:]
    if "```python" in section
}


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_shows_lines_of_its_script(name: str) -> None:
    section = SECTIONS[name]
    script = re.search(r"`\.\./(examples/\w+\.py)`", section)[1]
    assert f"python {script}" in section or f" {script} " in section
    written = lines_of((ROOT / script).read_text(encoding="utf-8"))
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert [line for line in lines_of(block) if line not in written] == []
    test = ROOT / re.search(r"<!-- run by (\S+) -->", section)[1]
    assert Path(script).stem in test.read_text(encoding="utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_is_in_the_table_and_explains_itself(script: Path) -> None:
    table = PAGE.partition("Which optimizer")[0]
    assert f"`../examples/{script.name}`" in table
    text = script.read_text(encoding="utf-8")
    assert f"examples/{script.name}" in text.split('"""')[1], "its docstring has no command"
    assert len(text.splitlines()) <= 130

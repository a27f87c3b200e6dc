"""The page of recipes: each block runs as it stands; every script is in the table, and tested."""

import math
import os
import re
import subprocess
import sys
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
#: The loss of guessing; of two classes where nothing else is named.
GUESSING = {"Plain torch": math.log(64), "Hugging Face Trainer": math.log(32)}
LINK = r"\[(examples/\w+\.py)\]\(\.\./\1\)"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", SECTIONS)
def test_a_block_that_is_copied_into_a_file_trains(name: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL)
    (tmp_path / "copied.py").write_text(block, encoding="utf-8")
    environment = {"HF_HUB_OFFLINE": "1", "RAY_ADDRESS": "local"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "copied.py"],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout + done.stderr  # Ray prints what its workers print to either
    losses = re.findall(r"loss'?:? '?(\d+\.\d+(?:e-\d+)?)", printed)
    assert 0 < float(losses[-1]) < 0.9 * GUESSING.get(name, math.log(2)), printed


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_links_to_its_script(name: str) -> None:
    script = re.search(LINK, SECTIONS[name])[1]
    assert f"python {script}" in SECTIONS[name] or f" {script} " in SECTIONS[name]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_is_in_the_table_explains_itself_and_has_a_test(script: Path) -> None:
    table = PAGE.partition("Which optimizer stands")[0]
    assert script.name in {Path(found).name for found in re.findall(LINK, table)}
    text = script.read_text(encoding="utf-8")
    assert f"examples/{script.name}" in text.split('"""')[1], "its docstring has no command"
    longest = 150 if script.stem == "against_adamw" else 130  # a comparison, not a recipe
    assert len(text.splitlines()) <= longest
    tests = [file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("*.py")]
    assert any(script.stem in test for test in tests)

"""Every python block of the README and of the pages runs, in the order of its page.

One that cannot run here has a comment just before it: `<!-- not run: the reason -->`, or
`<!-- run by tests/... -->` if another test runs it, with what it needs.
"""

import re
import sys
import tomllib
from pathlib import Path

import matplotlib
import pytest

from docs.markdown_blocks import PAGES, ROOT, python_blocks

pytestmark = pytest.mark.usefixtures("one_thread")
WITH_BLOCKS = [page for page in PAGES if python_blocks(page)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_the_pages_have_examples():
    assert {"README.md", "docs/index.md", "docs/settings.md"} <= set(map(name_of, WITH_BLOCKS))


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_the_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    matplotlib.use("agg")
    names = {"__name__": "example"}
    for number, block in enumerate(python_blocks(page), start=1):  # each may continue the last
        if not block.excuse.startswith(("not run: ", "run by ")):
            exec(compile(block.code, f"{name_of(page)}, example {number}", "exec"), names)
    if page.name == "instruments.md":
        assert list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_an_excuse_has_a_reason_or_names_a_test(page):
    for block in python_blocks(page):
        if block.excuse.startswith("run by "):
            assert (ROOT / block.excuse.removeprefix("run by ")).is_file(), block.excuse
        elif block.excuse.startswith("not run"):
            assert len(block.excuse.removeprefix("not run: ").split()) >= 3, block.excuse


def test_what_a_page_installs_exists():
    """Each extra in a line such as `pip install . "./lab[vision]"` is one of that package."""
    files = {".": "pyproject.toml", "./lab": "lab/pyproject.toml"}
    found = set()
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        for line in re.findall(r"pip install [^\n`#]*", page.read_text(encoding="utf-8")):
            found.update(re.findall(r"(?:^|[\s\"])(\.(?:/lab)?)\[([\w,]+)\]", line))
    assert len(found) >= 4
    for package, extras in found:
        told = tomllib.loads((ROOT / files[package]).read_text(encoding="utf-8"))["project"]
        assert set(extras.split(",")) <= set(told["optional-dependencies"]), (package, extras)

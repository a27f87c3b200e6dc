"""Rules of the house that a tool can check: sizes of files and functions, words, skips."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import conftest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "sgdf").rglob("*.py"))
LINES, FUNCTION_LINES = 400, 60

DATA = {"lab/paper/tables.py"}
DEVICE_CODE = {"kernels/triton_filter.py"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "sgdf").as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_fits_the_head_and_a_function_a_screen(path):
    source = path.read_text(encoding="utf-8")
    if name_of(path) in DEVICE_CODE:
        return
    if name_of(path) not in DATA:
        assert len(source.splitlines()) <= LINES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert lines_of_code(node) <= FUNCTION_LINES, node.name


def lines_of_code(function: ast.FunctionDef) -> int:
    """Its lines without those of the docstring: a public function explains every argument."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - (docstring.end_lineno - docstring.lineno + 1)


#: Wordings that only their author understands, and what to write instead.
DIALECT = {
    r"\b(go|goes|went) on (from|where|with)\b": "resume, continue",
    r"\bgo(es)? before (the|all|that)\b": "override",
    r"\bpolite kill\b": "SIGTERM",
    r"\bbytes a parameter\b": "bytes per parameter",
    r"\bnumbers that are none\b": "NaN and infinity",
    r"\bjudged?\b": "evaluate",
}


@pytest.mark.parametrize("pattern", DIALECT)
def test_words_of_the_field(pattern):
    pages = [*SOURCES, ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}, better: {DIALECT[pattern]}"
        for path in pages
        for match in re.finditer(pattern, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_a_skip_is_accepted_only_with_a_reason_on_the_list():
    def skipped(reason: str) -> SimpleNamespace:
        return SimpleNamespace(nodeid="tests/a.py::b", longrepr=("a.py", 1, f"Skipped: {reason}"))

    assert conftest.unexpected_skips([skipped("nothing can be mounted here: no root")]) == []
    assert conftest.unexpected_skips([skipped("could not import 'ray'")]) == [
        "tests/a.py::b: could not import 'ray'"
    ]

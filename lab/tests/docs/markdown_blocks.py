"""The python blocks of the README and the pages, and why some of them do not run."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    code: str
    excuse: str  #: "not run: REASON" or "run by FILE", from a comment just before the block


def python_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"(?:<!-- ([^\n]+) -->\n+)?```python\n(.*?)```", text, re.DOTALL)
    return [Block(code, excuse) for excuse, code in found]

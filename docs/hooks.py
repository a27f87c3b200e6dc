"""What MkDocs does to a page of this site before it reads it."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files outside docs/ instead of linking to them: the site does not have them."""
    markdown = re.sub(r"(?<!!)\[([^]]+)\]\(((?:\.\./)+([^)#]+))\)", _named, markdown)
    return re.sub(r"`(?:\.\./)+(\w+/[^`\s]+)`", r"`\1`", markdown)


def _named(link: re.Match[str]) -> str:
    label, path = link[1], link[3]
    if (ROOT / "docs" / path).exists() or not (ROOT / path).exists():
        return link[0]  # a page of this site, or a mistake for MkDocs to report
    return f"`{path}`" if label.strip("`") == path else f"{label} (`{path}`)"


def on_page_content(html: str, **_: Any) -> str:
    """On a narrow screen: names and numbers in one piece, and room for the sentences of a table."""
    html = re.sub(r"<code>([^<]{1,34})</code>", r'<code class="short">\1</code>', html)
    return re.sub(r"<td>(.*?)</td>", _cell, html)


def _cell(cell: re.Match[str]) -> str:
    text = re.sub("<[^>]+>", "", cell[1])
    if text == cell[1] and len(text) <= 20 and re.search(r"\d", text):
        return cell[0].replace(" ", "&nbsp;")
    return f'<td class="long">{cell[1]}</td>' if len(text) > 40 else cell[0]


def on_post_build(config: Any, **_: Any) -> None:
    """The playground of the site links back to it, also from file://; the page alone does not."""
    page = Path(config["site_dir"]) / "playground" / "index.html"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace('<a id="home"', '<a id="home" data-site', 1), encoding="utf-8")

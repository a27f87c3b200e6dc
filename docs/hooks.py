"""What MkDocs does to a page of this site before it reads it."""

import json
import re
from pathlib import Path
from typing import Any

import formulas
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OPENED = ("in-short", "what-is-promised")  # sections that a folded page begins with


def on_files(files: Files, config: Any, **_: Any) -> None:
    """A page for every example script and notebook: the links of the recipes lead there."""
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = f"# {script.name}\n\n```python\n{script.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, f"examples/{script.stem}.md", content=text))
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        text = "\n\n".join(map(_as_markdown, cells))
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=text))


def _as_markdown(cell: Any) -> str:
    source = "".join(cell["source"])
    return f"```python\n{source}\n```" if cell["cell_type"] == "code" else source


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files outside docs/ instead of linking to them, except the examples."""
    markdown = re.sub(r"\]\(\.\./(examples/\w+)\.(?:py|ipynb)\)", r"](\1.md)", markdown)
    markdown = re.sub(r"(?<!!)\[([^]]+)\]\(((?:\.\./)+([^)#]+))\)", _named, markdown)
    return re.sub(r"`(?:\.\./)+(\w+/[^`\s]+)`", r"`\1`", markdown)


def _named(link: re.Match[str]) -> str:
    label, path = link[1], link[3]
    if (ROOT / "docs" / path).exists() or not (ROOT / path).exists():
        return link[0]  # a page of this site, or a mistake for MkDocs to report
    return f"`{path}`" if label.strip("`") == path else f"{label} (`{path}`)"


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Formulas, folded sections, and on a narrow screen names and numbers in one piece."""
    html = formulas.typeset(html)
    if page.file.src_uri in config.extra["folded"]:
        html = folded(html)
    html = re.sub(r"<code>([^<]{1,34})</code>", r'<code class="short">\1</code>', html)
    return re.sub(r"<td>(.*?)</td>", _cell, html)


def folded(html: str) -> str:
    """Each section closed, so that its page is a list of what there is; a summary stays open."""
    # What mkdocstrings puts around an object begins before its heading.
    html = re.sub(r'(?s)(<div class="doc doc-object[^>]*>\s*)(<h2 .*?</h2>)', r"\2\1", html)
    start, *sections = re.split(r"(?=<h2 )", html)
    return start + "".join(map(_fold, sections))


def _fold(section: str) -> str:
    heading, end, rest = section.partition("</h2>")
    opened = " open" if any(f'id="{name}"' in heading for name in OPENED) else ""
    # The first sentence of an object of the reference, or a title in bold.
    first = re.match(r'(?s)<div class="doc doc-object.*?<p>(.*?)</p>', rest) or re.match(
        r"\s*<p><strong>([^<]*)</strong></p>", rest
    )
    about = f'<p class="about">{first[1]}</p>' if first else ""
    summary = f"<summary>{heading}{end}{about}</summary>"
    return f'<details class="fold"{opened}>{summary}{rest}</details>'


def _cell(cell: re.Match[str]) -> str:
    text = re.sub("<[^>]+>", "", cell[1])
    if text == cell[1] and len(text) <= 20 and re.search(r"\d", text):
        return cell[0].replace(" ", "&nbsp;")
    return f'<td class="long">{cell[1]}</td>' if len(text) > 40 else cell[0]


def on_post_build(config: Any, **_: Any) -> None:
    """Only in the site does the playground link back to it, also from file://."""
    page = Path(config["site_dir"]) / "playground" / "index.html"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace('<a id="home"', '<a id="home" data-site', 1), encoding="utf-8")

"""Self-contained HTML pages, on paper, on a phone and in both colour schemes.

Whatever comes from outside is text, never markup: it is escaped here, and by matplotlib in its SVG.
As a second guard, the page's content security policy allows no script and loads nothing.
"""

import html
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from sgdf import __version__
from sgdf_lab.support.errors import visible
from sgdf_lab.support.figures import dark_rules
from sgdf_lab.support.files import explained, write_atomically

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def write(path: Path, title: str, body: str, source: str) -> None:
    """Write a page atomically: a reader sees the old one or the new one.

    Args:
        path: of the page.
        title: of the page.
        body: its markup.
        source: what it was made from.
    """
    style = files("sgdf_lab.support").joinpath("assets", "page.css").read_text(encoding="utf-8")
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>{style}{dark_rules()}</style>
</head>
<body>
<main>
<h1>{text(title)}</h1>
{body}
</main>
<footer>Made by sgdf {text(__version__)} on {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
from {text(source)}. The page is self-contained: it loads nothing.</footer>
</body>
</html>
"""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)


def text(value: object) -> str:
    """Anything from outside, as text of the page."""
    return html.escape(visible(value))


def contents(entries: Iterable[tuple[str, str, str]]) -> str:
    """Links to the sections of a page: their ids, titles, and the words behind them."""
    links = (
        f'<li><a href="#{text(name)}">{text(title)}</a>: {text(words)}</li>'
        for name, title, words in entries
    )
    return f"<nav><ul>{''.join(links)}</ul></nav>"


def html_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], remarks: Sequence[str] = ()
) -> str:
    """Rows begin with their label. On a phone each number has the title of its column beside it."""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = ""
    for remark, (label, *values) in zip(remarks or [""] * len(rows), rows, strict=True):
        small = f"<small>{text(remark)}</small>" if remark else ""
        numbers = "".join(
            f'<td data-title="{text(title)}">{text(value)}</td>'
            for title, value in zip(titles, values, strict=True)
        )
        body += f'<tr><th scope="row">{text(label)}{small}</th>{numbers}</tr>'
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )

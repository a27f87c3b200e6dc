"""The links, anchors and loaded files of a built page."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
LOADING_RELATIONS = {"stylesheet", "preload", "preconnect", "dns-prefetch", "icon", "manifest"}


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get(LOADING.get(tag, "")):
            self.loads.append(given[LOADING[tag]])
        if tag == "link" and LOADING_RELATIONS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))


def is_elsewhere(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.netloc or (parts.scheme and parts.scheme != "data"))


def broken(pages: dict[Path, Page]) -> list[str]:
    """The links inside the site whose file or anchor does not exist."""
    found = []
    for page in pages.values():
        for link in (*page.links, *page.loads):
            if is_elsewhere(link) or link.startswith("data:"):
                continue
            parts = urlsplit(link)
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            if target.is_dir():
                target = target / "index.html"
            anchors = pages[target].anchors if target in pages else None
            missing_anchor = bool(parts.fragment) and anchors is not None
            missing_anchor = missing_anchor and unquote(parts.fragment) not in (anchors or ())
            if not target.is_file() or missing_anchor:
                found.append(f"{page.path.name}: {link}")
    return found

"""The documentation site: it builds without a warning, is complete, and loads nothing."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from docs.links import Page, broken, is_elsewhere
from docs.public_names import figure_names, public_names

ROOT = Path(__file__).parents[3]
ADDRESS = "https://sgdf.invalid/"  # the social card needs one
FOUND = "[...document.querySelectorAll('.md-search-result__list a')].map(a => a.href).join(' ')"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_URL": ADDRESS},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert not re.search("WARNING|ERROR", built.stdout + built.stderr), built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path.resolve(): Page(path.resolve()) for path in site.rglob("*.html")}


def test_every_link_and_anchor_of_the_site_exists(pages):
    assert len(pages) > 25
    # 404.html may be shown at any address, so its links are absolute.
    checked = {path: page for path, page in pages.items() if path.name != "404.html"}
    assert not broken(checked)


def test_the_checker_notices_missing_files_and_anchors(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#one">x</a><a href="#here">y</a><p id="here">')
    (tmp_path / "b.html").write_text('<h1 id="two"></h1><img src="missing.png"><a href="c.html">')
    pages = {path: Page(path) for path in tmp_path.glob("*.html")}
    wrong = ["a.html: b.html#one", "b.html: c.html", "b.html: missing.png"]
    assert sorted(broken(pages)) == wrong


def test_nothing_is_loaded_from_elsewhere(site, pages):
    found = [f"{page.path.name}: {link}" for page in pages.values() for link in page.loads
             if is_elsewhere(link)]  # fmt: skip
    for sheet in site.rglob("*.css"):
        found += re.findall(r"(?:url\(|@import )['\"]?https?:[^)\s]*", sheet.read_text())
    assert not found


def test_the_reference_has_every_public_name(pages):
    shown = {anchor for path, page in pages.items() if path.parent.name == "reference"
             for anchor in page.anchors}  # fmt: skip
    names = {name for name, _ in (*public_names(), *figure_names())}
    missing = names - shown
    assert not missing, f"add ::: {' and ::: '.join(sorted(missing))} to a page of docs/reference"


def test_every_page_of_the_navigation_is_there(site):
    names = re.findall(r"([\w/-]+)\.(?:md|html)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert len(names) > 20
    for name in names:
        assert (site / f"{name}.html").is_file(), name


def wait_for(browser, script):
    """The value of the script, once it has one."""
    while not (value := browser.evaluate(script)):
        time.sleep(0.05)
    return value


def test_the_search_works_from_a_file_and_asks_nobody(site, browser):
    """In a browser, without a server: the words of a page are found."""
    browser.send("Page.navigate", url=f"{(site / 'index.html').as_uri()}?q=OneCycleLR")
    assert "settings.html" in wait_for(browser, FOUND)
    schemes = {request.partition(":")[0] for request in browser.requests}
    assert schemes <= {"file", "data", "blob", "about"}
    assert not browser.problems


def test_the_playground_of_the_site_links_back(site, browser):
    browser.open(site / "playground" / "index.html")
    assert browser.evaluate("document.getElementById('home').hidden") is False


def show(browser, page, width):
    """Open a page of the site in a window of this width."""
    browser.send(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=width < 500,
    )
    browser.send("Page.navigate", url=page.as_uri())
    ready = f"location.href == '{page.as_uri()}' && document.readyState == 'complete'"
    assert wait_for(browser, ready)


OPEN = "document.querySelectorAll('details').forEach(d => { d.open = true })"


@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_the_window(site, browser, width):
    """With all sections open: what is wider than its page scrolls in a box of its own."""
    wrong = {}
    for page in written_pages(site):
        show(browser, page, width)
        browser.evaluate(OPEN)
        needed = browser.evaluate("document.documentElement.scrollWidth")
        if needed != width or browser.problems:
            wrong[str(page.relative_to(site))] = needed, [*browser.problems]
    assert not wrong


def written_pages(site):
    return [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]


def test_code_fits_its_box_on_a_small_laptop(site, browser):
    boxes = "[...document.querySelectorAll('pre > code')]"
    wider = f"{boxes}.filter(c => c.scrollWidth > c.clientWidth)"
    for page in written_pages(site):
        if "<pre" in page.read_text(encoding="utf-8"):
            show(browser, page, 1280)
            browser.evaluate(OPEN)
            assert browser.evaluate(f"{wider}.map(c => c.innerText).join()") == "", page.name


def test_every_page_is_short(site, browser):
    heights = {}
    for page in written_pages(site):
        show(browser, page, 1280)
        height = browser.evaluate("document.documentElement.scrollHeight")
        heights[str(page.relative_to(site))] = height
    assert not {name: height for name, height in heights.items() if height >= 6000}


@pytest.mark.parametrize(
    ("name", "place"), [("recipes", "fsdp2"), ("reference/index", "sgdf.FilterAdamW")]
)
def test_a_link_into_a_folded_section_opens_it(site, browser, name, place):
    show(browser, site / f"{name}.html", 1280)
    assert browser.evaluate("document.querySelectorAll('details.fold[open]').length") == 0
    browser.evaluate(f"location.hash = {place!r}")
    assert wait_for(browser, f"document.getElementById({place!r}).closest('details').open")
    assert browser.evaluate("document.querySelectorAll('details.fold[open]').length") == 1


def test_the_summary_of_a_folded_page_is_open(site, browser):
    show(browser, site / "why.html", 1280)
    opened = "[...document.querySelectorAll('details.fold[open]')].map(d => d.innerText)"
    (summary,) = browser.evaluate(opened)
    assert summary.startswith("In short")


#: Formulas as source code has them: m^, b1^t, K^0.5, and roots without a bar over what they are of.
AS_IN_CODE = r"\b[gmsvK]\^|\bb[12]\b|√(?:\(|\w\^)"
#: The text of a page without code; a formula that is typeset has its source in an annotation.
PROSE = """[...document.querySelectorAll('article *')].filter(e => !e.closest('pre, code, .katex'))
    .flatMap(e => [...e.childNodes]).filter(n => n.nodeType == 3).map(n => n.data).join('\\n')"""


def test_formulas_are_typeset(site, browser):
    found, counts = {}, {}
    for page in written_pages(site):
        show(browser, page, 1280)
        name = page.relative_to(site).with_suffix("").as_posix()
        counts[name] = browser.evaluate("document.querySelectorAll('.katex').length")
        assert browser.evaluate("document.querySelectorAll('.katex-error').length") == 0, name
        if wrong := re.findall(f".*(?:{AS_IN_CODE}).*", browser.evaluate(PROSE)):
            found[name] = wrong
    assert not found
    assert counts["filter"] >= 10
    assert counts["reference/index"] >= 6


def test_the_first_page_has_three_doors_and_the_playground(site, browser):
    show(browser, site / "index.html", 1280)
    titles = "[...document.querySelectorAll('.doors h3')].map(h => h.firstChild.data)"
    assert browser.evaluate(titles) == ["Use it", "Compare with it", "Understand it"]
    links = (
        "[...document.querySelectorAll('.doors > div')].map(d => d.querySelectorAll('a').length)"
    )
    assert min(browser.evaluate(links)) >= 3
    source = browser.evaluate("document.querySelector('iframe.playground').getAttribute('src')")
    assert (site / source).is_file()


def test_a_link_to_the_site_shows_its_card(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    (address,) = re.findall(r'property="og:image" content="([^"]+)"', page)
    assert address.startswith(ADDRESS)
    with Image.open(site / address.removeprefix(ADDRESS)) as card:
        assert card.size == (1280, 640)
    drawn = (ROOT / "docs" / "assets" / "social-card.svg").read_text(encoding="utf-8")
    assert {"FilterAdamW", "FilterMuon", "SGDF"} <= set(re.findall(r"\w+", drawn))


def test_the_examples_are_pages_that_the_recipes_link_to(site):
    linked = re.findall(r'href="(examples/\w+)\.html"', (site / "recipes.html").read_text())
    files = [f for f in (ROOT / "examples").iterdir() if f.suffix in (".py", ".ipynb")]
    assert set(linked) == {f"examples/{file.stem}" for file in files}
    for name in ("index", "filter"):
        assert 'href="examples/filter.html"' in (site / f"{name}.html").read_text()

"""The documentation site: it builds without a warning, is complete, and loads nothing."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from docs.links import Page, broken, is_elsewhere
from docs.public_names import figure_names, public_names
from report.browser import PATIENCE

ROOT = Path(__file__).parents[3]
FOUND = "[...document.querySelectorAll('.md-search-result__list a')].map(a => a.href).join(' ')"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
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
    deadline = time.monotonic() + PATIENCE
    while not (value := browser.evaluate(script)) and time.monotonic() < deadline:
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
READ = ["index", "settings", "evidence", "recipes", "reference/index", "filter"]


@pytest.mark.parametrize("name", READ)
def test_a_page_fits_a_phone(site, browser, name):
    show(browser, site / f"{name}.html", 390)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    assert not browser.problems


def test_code_fits_its_box_on_a_small_laptop(site, browser):
    boxes = "[...document.querySelectorAll('pre > code')]"
    wider = f"{boxes}.filter(c => c.scrollWidth > c.clientWidth)"
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html" and "<pre" in page.read_text(encoding="utf-8"):
            show(browser, page, 1280)
            browser.evaluate(OPEN)
            assert browser.evaluate(f"{wider}.map(c => c.innerText).join()") == "", page.name


def test_every_page_is_short(site, browser):
    heights = {}
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html":
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


@pytest.mark.parametrize(("name", "least"), [("filter", 10), ("reference/index", 6)])
def test_formulas_are_typeset(site, browser, name, least):
    show(browser, site / f"{name}.html", 1280)
    assert browser.evaluate("document.querySelectorAll('.katex').length") >= least
    assert browser.evaluate("document.querySelectorAll('.katex-error').length") == 0
    assert not re.search(r"\\b[gmsv]\^(?!\w)|\bb1\^", browser.evaluate("document.body.innerText"))


def test_the_examples_are_pages_that_the_recipes_link_to(site):
    linked = re.findall(r'href="(examples/\w+)\.html"', (site / "recipes.html").read_text())
    scripts = {f"examples/{file.stem}" for file in (ROOT / "examples").glob("*.py")}
    assert set(linked) >= scripts

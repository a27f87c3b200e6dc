"""The page in a real browser."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from report import made
from report.browser import Browser
from sgdf_lab.reports import page
from sgdf_lab.reports.comparison import compare_runs
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.errors import UserError

SCRIPT = "<script>alert(1)</script>"


def write_page(out: Path, target: Path, title: str, skipped: Sequence[str] = ()) -> None:
    records, _ = read_runs([out])
    page.write(target, records, compare_runs(records), title=title, skipped=skipped)


@pytest.fixture(scope="module")
def thirty_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a table of the paper: ten optimizers, three seeds, 200 epochs."""
    out = tmp_path_factory.mktemp("thirty")
    names = ("sgdf", "sgd", "adam", "adamw", "radam", "msvag", "lion", "sophia-g", "adabound")
    for i, name in enumerate((*names, "adabelief")):
        for seed in range(3):
            made.run(out / "runs", made.config(name, seed, "cifar10"), made.curve(85 + i, 200))
    target = out / "report.html"
    write_page(out / "runs", target, "Thirty runs")
    return target


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine learning rates of two optimizers, two of which hardly learn anything."""
    out = tmp_path_factory.mktemp("grid")
    rates = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    for name, factor, least in (("sgdf", 1, 80.0), ("adam", 0.003, 78.2)):
        for i, lr in enumerate(rates):
            for seed in (0, 1):
                final = (9.0 if lr > 1 and factor == 1 else least + i) + seed * (1 + factor)
                values = [9.0, 70.0 if final > 10 else 9.0, final]
                config = made.config(name, seed, lr=float(f"{factor * lr:g}"), validation=9)
                extra = {"validation_accuracy": values}
                made.run(out / "runs", config, values, extra=extra)
    target = out / "report.html"
    write_page(out / "runs", target, "A grid")
    return target


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names and values that would be markup, scripts or links if they were not escaped."""
    out = tmp_path_factory.mktemp("hostile")
    names = [SCRIPT, "'\"><img src=x onerror=alert(2)>", "javascript:alert(3)", "%{x}</script>"]
    for name in names:
        folder = made.run(out / "runs", made.hostile(name, note="<!--<script>"), [1, 2, 3])
        environment = {
            "command": f"sgdf {SCRIPT}",
            "commit": '"><a href="javascript:alert(4)">commit</a>',
            "machine": {SCRIPT: ["</details>", "\ud800\x1b"]},
            "earlier": ["</dl>", {"started": "<b>then</b>"}, None],
        }
        (folder / "env.json").write_text(json.dumps(environment))
    folder.rename(folder.with_name("<script>alert(5)<"))
    target = out / "report.html"
    write_page(out / "runs", target, f"</title>{SCRIPT}", [f"not read: {SCRIPT}"])
    return target


def test_charts_and_tables_are_there_without_errors(browser: Browser, thirty_runs: Path) -> None:
    browser.open(thirty_runs)
    assert browser.problems == []
    assert browser.evaluate("document.querySelectorAll('table tbody tr').length") == 10
    titles = browser.evaluate("[...document.querySelectorAll('figure h3')].map(h => h.textContent)")
    assert titles == ["Differences from sgd", "Test accuracy", "Training accuracy",
                      "Training loss", "Test loss"]  # fmt: skip
    assert browser.evaluate("document.querySelectorAll('.legend li').length") == 10
    assert browser.evaluate("document.querySelectorAll('details').length") == 30


def test_a_line_has_words_where_a_reader_points(browser: Browser, thirty_runs: Path) -> None:
    browser.open(thirty_runs)
    words = "[...document.querySelectorAll('.charts figure')[0].querySelectorAll('title')]"
    shown = browser.evaluate(f"{words}.map(title => title.textContent)")
    assert len(shown) == 10
    assert "sgdf: ends at 85 %" in shown


def test_it_is_small(browser: Browser, thirty_runs: Path) -> None:
    """What decides how fast it opens: its size, and the elements that a browser lays out."""
    assert thirty_runs.stat().st_size < 1.5e6
    browser.open(thirty_runs)
    assert browser.evaluate("document.querySelectorAll('*').length") < 4000


def test_it_loads_nothing_and_sends_nothing(browser: Browser, thirty_runs: Path) -> None:
    browser.open(thirty_runs)
    assert browser.problems == []
    loaded = [url for url in browser.requests if not url.startswith("data:")]
    assert loaded == [thirty_runs.resolve().as_uri()]


@pytest.mark.parametrize("which", ["thirty_runs", "hostile"])
def test_a_phone_scrolls_the_page_in_one_direction(
    browser: Browser, which: str, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(which), width=375, height=800)
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.evaluate("innerWidth") == 375
    assert browser.evaluate("document.documentElement.scrollWidth") <= 375
    widest = "Math.max(...[...document.querySelectorAll('svg')].map(s => s.clientWidth))"
    assert browser.evaluate(widest) <= 375


@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("which", ["thirty_runs", "grid"])
def test_a_phone_shows_every_number_entry_and_label(
    browser: Browser, which: str, width: int, request: pytest.FixtureRequest
) -> None:
    """Inside the window, and nothing on top of another."""
    browser.open(request.getfixturevalue(which), width=width, height=800)
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.evaluate(BOXES)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    for parts in ("td", "tbody th", ".legend li", ".chart text"):
        outside = browser.evaluate(f"outside({parts!r}, {width})")
        assert outside == [], parts
        assert browser.evaluate(f"overlaps({parts!r})") == [], parts
    titles = "getComputedStyle(document.querySelector('td[data-title]'), '::before').content"
    assert browser.evaluate(titles) == '"best"'
    assert browser.problems == []


BOXES = """
function boxes(scope, parts) {
  return [...scope.querySelectorAll(parts)].map(e => [e.textContent, e.getBoundingClientRect()])
    .filter(([words, box]) => box.width && words.trim());
}
function outside(parts, width) {
  return boxes(document, parts).filter(([, box]) => box.left < -1 || box.right > width + 1)
    .map(([words]) => words);
}
function overlaps(parts) {
  const found = [];
  for (const scope of document.querySelectorAll("figure, .scroll")) {
    const all = boxes(scope, parts);
    all.forEach(([words, a], i) => all.slice(i + 1).forEach(([others, b]) => {
      if (a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 2
          && b.top < a.bottom - 2) found.push(words + " | " + others);
    }));
  }
  return found;
}
"""


def test_dark_mode_changes_the_page_and_its_charts(browser: Browser, grid: Path) -> None:
    colours = (
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
        " getComputedStyle(document.querySelector('.chart path[style*=fill]')).fill,"
        " getComputedStyle(document.querySelector('.legend line')).stroke]"
    )
    dark = ["rgb(22, 24, 29)", "rgb(228, 228, 228)", "rgb(22, 24, 29)", "rgb(255, 127, 50)"]
    light = ["rgb(255, 255, 255)", "rgb(34, 34, 34)", "rgb(255, 255, 255)", "rgb(213, 94, 0)"]
    settled = (  # a browser notices the other scheme with its next frame
        "new Promise(next => requestAnimationFrame(() => requestAnimationFrame(next)))"
    )
    browser.open(grid, scheme="dark")
    assert browser.evaluate(colours) == dark
    browser.emulate(scheme="light")
    browser.evaluate(settled)
    assert browser.evaluate(colours) == light
    browser.emulate(scheme="dark", media="print")  # paper is white
    browser.evaluate(settled)
    assert browser.evaluate(colours) == light
    assert browser.problems == []


def test_the_verdict_comes_first_and_what_was_not_chosen_is_folded(
    browser: Browser, grid: Path
) -> None:
    browser.open(grid)
    order = browser.evaluate(
        "[...document.querySelectorAll('h1, .verdict, .warning, .chart, table, summary')]"
        ".map(part => part.className || part.tagName).slice(0, 8)"
    )
    assert order == ["H1", "verdict", "warning", "chart", "TABLE", "SUMMARY", "TABLE", "chart"]
    verdict = browser.evaluate("document.querySelector('.verdict').textContent")
    assert "sgdf" in verdict
    assert "adam" in verdict
    assert "adam" in browser.evaluate("document.querySelector('.warning').textContent")
    first, folded = browser.evaluate(
        "[...document.querySelectorAll('table')].map(t => [...t.tBodies[0].rows]"
        ".map(row => row.cells[0].textContent))"
    )
    assert first == ["sgdf, lr 1 ✓", "adam, lr 0.03 ✓"]
    assert len(folded) == 16
    assert browser.evaluate("document.querySelector('details').open") is False


def test_several_comparisons_begin_with_their_verdicts(tmp_path: Path) -> None:
    for task in ("digits", "cifar10"):
        config = made.config("sgdf", task=task, epochs=3)
        made.run(tmp_path / "runs", config, [1, 2, 3])
    target = tmp_path / "report.html"
    write_page(tmp_path / "runs", target, "Two")
    contents = target.read_text(encoding="utf-8").partition("<nav>")[2].partition("</nav>")[0]
    assert contents.count("Only sgdf was run: there is nothing to compare it with.") == 2


def test_charts_shrink_to_the_paper(browser: Browser, thirty_runs: Path) -> None:
    browser.open(thirty_runs)
    browser.emulate(media="print")
    browser.evaluate("document.body.style.width = '600px'")  # a sheet; no window is resized
    right = "Math.max(...[...document.querySelectorAll('.chart svg, table')]"
    right += ".map(part => part.getBoundingClientRect().right))"
    assert 400 < browser.evaluate(right) <= 600
    assert browser.pdf().startswith(b"%PDF")


def test_hostile_names_are_text(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    assert browser.problems == []  # an alert would be here too
    assert browser.evaluate("document.title") == f"</title>{SCRIPT}"
    assert browser.evaluate("document.querySelector('h1').textContent") == f"</title>{SCRIPT}"
    rows = browser.evaluate(
        "[...document.querySelectorAll('tbody th')].map(cell => cell.textContent)"
    )
    assert rows == sorted(["'\"><img src=x onerror=alert(2)>", "%{x}</script>", SCRIPT,
                           "javascript:alert(3)"])  # fmt: skip
    legend = browser.evaluate(
        "[...document.querySelector('.legend').children].map(entry => entry.textContent)"
    )
    assert legend == rows
    assert browser.evaluate("document.querySelectorAll('img, main a, b, script').length") == 0


def test_the_policy_forbids_what_would_slip_through(
    browser: Browser, hostile: Path, tmp_path: Path
) -> None:
    slipped = tmp_path / "slipped.html"
    complete = hostile.read_text(encoding="utf-8")
    slipped.write_text(complete.replace("<h1>", "<script>window.ran = true</script><h1>", 1))
    browser.open(slipped)
    assert browser.evaluate("window.ran") is None
    assert any("Content Security Policy" in problem for problem in browser.problems)


def test_the_last_picture_of_each_cell_is_shown(browser: Browser, tmp_path: Path) -> None:
    """Only the first seed's; neither what is no image nor what an image says beside pixels."""
    for name in ("sgdf", "adam", "lion"):
        for seed in (0, 1):
            folder = made.run(tmp_path / "runs", made.config(name, seed), [1, 2, 3]) / "pictures"
            folder.mkdir()
            for epoch in (1, 2):
                about = PngInfo()
                about.add_text("comment", SCRIPT)
                image = Image.new("RGB", (900, 300 * epoch), "teal")
                image.save(folder / f"epoch-{epoch}.png", pnginfo=about)
            if name == "lion":
                (folder / "epoch-3.png").write_text(SCRIPT)
    target = tmp_path / "report.html"
    write_page(tmp_path / "runs", target, "Pictures")
    browser.open(target)
    images = "[...document.querySelectorAll('.gallery img')]"
    assert browser.evaluate(f"{images}.map(i => [i.naturalWidth, i.naturalHeight, i.alt])") == [
        [640, 427, "sgdf: seed 0, epoch-2.png"], [640, 427, "adam: seed 0, epoch-2.png"]
    ]  # fmt: skip
    assert browser.problems == []
    assert SCRIPT not in target.read_text()


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", made.config(), [1, 2, 3])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_page(tmp_path / "runs", tmp_path / "file" / "report.html", "")


def test_the_command(tmp_path: Path) -> None:
    made.run(tmp_path / "runs", made.config(), [1, 2, 3])
    (tmp_path / "runs" / "foreign").mkdir()
    script = (
        "import sys, sgdf_lab.cli.main as cli\n"
        "assert not {'matplotlib', 'rich', 'scipy'} & sys.modules.keys()\n"
        "sys.exit(cli.main(['report', *sys.argv[1:]]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "runs", "-o", "new/report.html", "--target", "2"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "skipped: runs/foreign is not the folder of a run" in ran.stdout
    assert "to 2 %" in ran.stdout
    assert ran.stdout.endswith("The page is in new/report.html\n")
    assert "<h3>Not read</h3>" in (tmp_path / "new" / "report.html").read_text(encoding="utf-8")

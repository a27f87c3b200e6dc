"""The page in a real browser."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from report import made
from report.browser import CHROMIUM, Browser
from sgdf.cli.main import parse
from sgdf.report import page
from sgdf.report.records import read_runs
from sgdf.report.statistics import compare_runs
from sgdf.support.errors import UserError

SCRIPT = "<script>alert(1)</script>"


def write_page(out: Path, target: Path, title: str, skipped: Sequence[str] = ()) -> None:
    records, _ = read_runs([out])
    page.write(target, records, compare_runs(records), title=title, skipped=skipped)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("there is no chromium here: install it to see the page in a browser")
    with Browser() as running:
        yield running


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
    charts = browser.evaluate(
        "[...document.querySelectorAll('.chart')].map(chart => "
        "chart.querySelectorAll('svg.main-svg .scatterlayer path.js-line').length)"
    )
    assert charts == [20, 20]  # accuracy and loss: a line and a band for each of ten cells
    assert browser.evaluate("document.querySelectorAll('details').length") == 30


def test_buttons_switch_what_is_drawn(browser: Browser, thirty_runs: Path) -> None:
    browser.open(thirty_runs)
    title = "document.querySelector('.chart .ytitle').textContent"
    assert browser.evaluate(title) == "test accuracy, %"
    browser.evaluate(
        "document.querySelectorAll('.chart .updatemenu-button')[1]"
        ".dispatchEvent(new MouseEvent('click'))"
    )
    browser.evaluate("new Promise(done => setTimeout(done, 200))")
    assert browser.evaluate(title) == "training accuracy, %"
    assert browser.problems == []


def test_it_is_small(browser: Browser, thirty_runs: Path) -> None:
    """What decides how fast it opens: its size, and the elements that a browser lays out."""
    assert thirty_runs.stat().st_size < 8e6
    browser.open(thirty_runs)
    assert browser.evaluate("document.querySelectorAll('*').length") < 4000


def test_it_loads_nothing_and_sends_nothing(browser: Browser, thirty_runs: Path) -> None:
    browser.open(thirty_runs)
    names = "[...document.querySelectorAll('.chart')[0].querySelectorAll('.modebar-btn')]"
    buttons = browser.evaluate(f"{names}.map(button => button.dataset.title.toLowerCase())")
    assert buttons == ["download plot as a png", "reset axes"]
    picture = "Plotly.toImage(document.querySelector('.chart')).then(url => url.slice(0, 14))"
    assert browser.evaluate(picture) == "data:image/png"
    assert browser.problems == []
    loaded = [url for url in browser.requests if not url.startswith(("data:", "blob:"))]
    assert loaded == [thirty_runs.resolve().as_uri()]


@pytest.mark.parametrize("which", ["thirty_runs", "hostile"])
def test_a_phone_scrolls_the_page_in_one_direction(
    browser: Browser, which: str, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(which), width=375, height=800)
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.evaluate("innerWidth") == 375
    assert browser.evaluate("document.documentElement.scrollWidth") <= 375
    widest = "Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.clientWidth))"
    assert browser.evaluate(widest) <= 375
    box = "document.querySelector('.scroll')"
    assert browser.evaluate(f"getComputedStyle({box}).overflowX") == "auto"


def test_charts_shrink_to_the_paper(browser: Browser, thirty_runs: Path) -> None:
    browser.open(thirty_runs)
    browser.send("Emulation.setEmulatedMedia", media="print")
    try:
        browser.evaluate("document.body.style.width = '600px'")  # a sheet; no window is resized
        right = "Math.max(...[...document.querySelectorAll('.chart .gridlayer path, table')]"
        right += ".map(part => part.getBoundingClientRect().right))"
        assert 400 < browser.evaluate(right) <= 600
        assert browser.pdf().startswith(b"%PDF")
    finally:
        browser.send("Emulation.setEmulatedMedia", media="")


def test_no_data_can_end_its_script() -> None:
    packed = page.as_data({"name": "</script><!--<script>&"})
    assert not set("<>&") & set(packed)
    assert json.loads(packed) == {"name": "</script><!--<script>&"}


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
        "[...document.querySelectorAll('.chart')[0].querySelectorAll('.legendtext')]"
        ".map(words => words.textContent)"
    )
    assert legend == rows
    assert (
        browser.evaluate("document.querySelectorAll('img, main a:not(.modebar-btn), b').length")
        == 0
    )
    assert browser.evaluate("document.querySelectorAll('script:not([type])').length") == 2


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
    """Of its first seed; what is no image is left out, and what an image says beside pixels too."""
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
        "import sys, sgdf.cli.main as cli\n"
        "assert not {'plotly', 'rich', 'scipy'} & sys.modules.keys()\n"
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


def test_no_runs_at_all(tmp_path: Path) -> None:
    options = parse(["report", str(tmp_path)])
    with pytest.raises(UserError, match="there are no runs in"):
        options.run(options)

"""The demo: real runs, a table and a page of what there is, and nothing done twice."""

import dataclasses
import re
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from sgdf_lab.cli.main import main
from sgdf_lab.reports import demo as report
from sgdf_lab.sweeps import demo


def test_all_optimizers_of_the_gpt_have_the_same_seeds_and_text(tmp_path):
    corpus = demo.write_corpus(tmp_path / "stdlib.txt")
    assert "def namedtuple" in corpus.read_text(encoding="utf-8") or corpus.stat().st_size > 1e6
    configs = demo.gpt_sweep(corpus).configs
    assert {(c.optimizer, c.seed) for c in configs} == {
        (name, seed) for name in demo.SETTINGS for seed in demo.SEEDS
    }
    assert len({c.name for c in configs}) == len(configs)
    assert {"adamw", "nadamw", "filter-adamw", "muon", "filter-muon"} <= set(demo.SETTINGS)


def outcome(name, *losses):
    return report.Outcome(name, [10, 20, 30], losses, 2.0, 8.0, "def <b>x</b>")


def test_steps_are_counted_to_the_last_loss_of_adamw():
    found = [outcome("adamw", [4, 3, 2], [4, 3, 2]), outcome("muon", [3, 1, 1], [3, 2, 1]),
             outcome("nadamw", [5, 4, 3], [5, 4, 3])]  # fmt: skip
    shown = {row[0]: row[1:] for row in report.rows(found)}
    assert list(shown) == ["Muon", "AdamW", "NAdamW"], "the best is first"
    assert shown["Muon"][:4] == ("1.000", "1.000 to 1.000", "17 of 30", "44%")
    assert shown["AdamW"][2:4] == ("30 of 30", "–")
    assert shown["NAdamW"][2:4] == ("not reached", "–")


def run_of(name, seed):
    return SimpleNamespace(config=SimpleNamespace(optimizer=name, seed=seed))


def test_a_demo_that_was_stopped_compares_the_seeds_that_all_have():
    runs = [run_of("adamw", 1), run_of("adamw", 0), run_of("muon", 0)]
    assert report.comparable(runs) == {"adamw": [runs[1]], "muon": [runs[2]]}
    assert report.comparable([]) == {}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_breaks_no_word(width, tmp_path, monkeypatch):
    written = "def f():\n" + " " * 300 + "return 1.25\n" + " " * 40 + "far " * 30
    found = [dataclasses.replace(outcome(name, [4, 3, 2]), sample=written)
             for name in demo.SETTINGS]  # fmt: skip
    monkeypatch.setattr(report, "outcomes", lambda *_: (found, []))
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    report.show(demo.gpt_sweep(demo.write_corpus(tmp_path / "text")), tmp_path, console)
    shown = out.getvalue()
    for word in ("FilterAdamW", "validation", "2.000", "8.0 bytes"):
        assert word in shown
    lines = [line for line in shown.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= max(80, width)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_gpt_ends_by_naming_its_page(tmp_path, monkeypatch, capsys, browser):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(demo, "SETTINGS", {n: demo.SETTINGS[n] for n in ("adamw", "filter-muon")})
    monkeypatch.setattr(demo, "TEXT", {**demo.TEXT, "batch": 4, "eval_tokens": 256})
    monkeypatch.setattr(report, "LENGTH", 80)
    command = ["demo", "--steps", "6", "--jobs", "1", "--device", "cpu"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert output.rstrip().endswith("The page is in runs/demo/demo.html")
    assert re.search(r"^AdamW +\d\.\d{3} .* 8\.0 bytes", output, re.M)
    page = tmp_path / "runs" / "demo" / "demo.html"
    assert page.stat().st_size < 1_000_000
    browser.send("Page.navigate", url=page.as_uri())
    ready = f"location.href == '{page.as_uri()}' && document.readyState == 'complete'"
    while not browser.evaluate(ready):
        pass
    assert browser.evaluate("document.querySelectorAll('pre').length") == 2
    assert browser.evaluate("document.querySelectorAll('svg').length") == 1
    assert browser.problems == []

    before = {p: p.read_bytes() for p in tmp_path.glob("runs/demo/*/metrics.jsonl")}
    assert len(before) == 4
    assert main(command) == 0
    starts = [p.read_text() for p in tmp_path.glob("runs/demo/*/env.json")]
    assert all('"earlier": []' in text for text in starts), "nothing was run again"


def test_what_a_model_writes_is_text_on_the_page(tmp_path):
    sweep = demo.gpt_sweep(demo.write_corpus(tmp_path / "text"))
    report.write(tmp_path / "page.html", sweep, [outcome("adamw", [4, 3, 2])])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "def &lt;b&gt;x" in page
    assert "<b>" not in page


# --- digits --------------------------------------------------------------------------------------


def test_every_optimizer_gets_the_same_search():
    configs = demo.digits_sweep().configs
    assert len(configs) == len({config.name for config in configs})
    by_optimizer = {}
    for config in configs:
        by_optimizer.setdefault(config.optimizer, set()).add((config.lr, config.seed))
    assert set(by_optimizer) == set(demo.LEARNING_RATES)
    assert {len(cells) for cells in by_optimizer.values()} == {12}
    assert all(config.validation == demo.VALIDATION for config in configs)


@pytest.mark.slow
def test_the_digits_end_by_naming_their_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(demo, "DIGITS_SEEDS", (0, 1))
    monkeypatch.setattr(demo, "LEARNING_RATES", {"sgdf": (0.05, 0.5), "adam": (0.001, 0.003)})
    assert main(["demo", "--digits", "--epochs", "2", "--jobs", "1", "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert output.rstrip().endswith("The page is in runs/demo/digits.html")
    assert "lr 0.5 \u2713" in output
    page = (tmp_path / "runs" / "demo" / "digits.html").read_text(encoding="utf-8")
    assert "four ways to descend" in page
    assert len(list(tmp_path.glob("runs/demo/*/metrics.jsonl"))) == 8


@pytest.mark.parametrize("words", [["--epochs", "1"], ["--digits", "--steps", "1"]])
def test_each_has_its_own_length(words, tmp_path, capsys):
    assert main(["demo", *words, "--out", str(tmp_path)]) == 1
    assert re.search("--(epochs|steps) is of the", capsys.readouterr().err)

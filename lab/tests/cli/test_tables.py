"""Tables and lists of commands in 80 columns, and in full where there is no terminal."""

import io

import pytest

from sgdf_lab.cli import sweep, theory
from sgdf_lab.cli.main import main
from sgdf_lab.theory.result import Check, Result

rich_console = pytest.importorskip("rich.console")


def result(name, printed, measured, error):
    check = Check("a check of some length: the mean over 500 steps", printed, "<=", measured, error)
    return Result(name, name, "lem:a_long_label_of_the_paper", "", "", (check,), "", (), None)


RESULTS = [
    result("a-statement-with-a-name", 2.375, 13.92, 0.0312),
    result("sde", 1.25e-300, -4.125e-12, 3e-14),
]


def in_width(thing, width):
    console = rich_console.Console(file=io.StringIO(), width=width, highlight=False)
    console.print(thing)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_statements_fit_with_their_numbers(width):
    shown = in_width(theory.table(RESULTS, width), width)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for number in ("<= 2.38", "13.9 ± 0.03", "<= 1.25e-300", "-4.13e-12 ± 3e-14"):
        assert number in shown


@pytest.mark.parametrize("columns", ["80", None])
@pytest.mark.parametrize("words", [["reproduce"], ["data", "list"]], ids=" ".join)
def test_lists_fit_80_columns_and_are_whole_in_a_pipe(
    monkeypatch, capsys, tmp_path, columns, words
):
    monkeypatch.setenv("SGDF_DATA", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    table, _, after = shown.partition("\n\nsgdf ")
    assert after, "the last line says what to do next"
    lines = table.splitlines()[3:]
    if columns:
        assert max(map(len, lines)) <= 80
    elif words == ["reproduce"]:
        from sgdf_lab import paper

        assert len([line for line in lines if line[0] != "─"]) == len(paper.PRESETS)


def test_a_preset_has_its_numbers_in_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    sweep.show_presets()
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("cifar10-vgg11"))
    assert line.split()[-3:] == ["10", "3", "200"]

"""The table of `sgdf bench step` in terminals of several widths, and in a file."""

import io
import json
from pathlib import Path

import pytest

from sgdf_lab.bench import run as screens

console = pytest.importorskip("rich.console")

RECORD = Path(__file__).parents[3] / "results" / "bench-step-cuda.json"


@pytest.fixture(scope="module")
def measured():
    return next(iter(json.loads(RECORD.read_text())["lists"].values()))


def shown(measured, width):
    screen = screens.RichScreen()
    screen.console = console.Console(file=io.StringIO(), width=width, highlight=False)
    screens.show_parameter_list(measured, "cuda", screen)
    return screen.console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_number_is_cut(measured, width):
    text = shown(measured, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for row in measured["rows"]:
        cells = screens.cells_of(row, None)
        kept = [cells[i] for i in (3, 4, 5, 7, 8, 9, 10)]
        assert all(cell in words for cell in kept), row["optimizer"]


def test_80_columns_hold_one_table(measured):
    assert shown(measured, 80).count("────\n") == 1
    assert "ms ± IQR/2" in shown(measured, 80)


def test_a_file_gets_all_columns(measured, capsys):
    screens.show_parameter_list(measured, "cuda", screens.open_screen())
    lines = capsys.readouterr().out.splitlines()
    assert any(all(name in line for name in screens.HEADER) for line in lines)


def test_a_log_says_what_is_measured(capsys):
    """Without a terminal, where rich shows nothing before the end."""
    with screens.open_screen().progress("tiny", 2) as tick:
        tick("warming up SGD fused")
        assert capsys.readouterr().err == "tiny: warming up SGD fused\n"

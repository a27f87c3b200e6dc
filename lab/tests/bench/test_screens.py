"""The table of `sgdf bench step` in terminals of several widths, and in a file."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from sgdf_lab.bench import run

RECORD = Path(__file__).parents[3] / "results" / "bench-step-cuda.json"


@pytest.mark.parametrize("width", [80, 120, run.FULL_WIDTH])
def test_no_number_is_cut(width):
    measured = next(iter(json.loads(RECORD.read_text())["lists"].values()))
    console = Console(file=io.StringIO(), width=width, highlight=False)
    run.show_parameter_list(measured, "cuda", console)
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for row in measured["rows"]:
        assert set(run.cells_of(row, None)[3:]) <= set(text.split()), row["optimizer"]
    if width == run.FULL_WIDTH:
        assert any(all(c.title in line for c in run.COLUMNS) for line in text.splitlines())


def test_a_log_says_what_is_measured(capsys):
    with run.shown_progress(run.open_console(), "tiny", 2) as tick:
        tick("warming up SGD fused")
    assert capsys.readouterr().err == "tiny: warming up SGD fused\n"

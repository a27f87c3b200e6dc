"""Tables that fit: no number is broken or cut, whatever the width."""

import io

import pytest

from sgdf_lab.support.tables import Column, as_rich, columns_of, fitting, say

console = pytest.importorskip("rich.console")

COLUMNS = [Column("", "label"), Column("what it is", "text")]
COLUMNS += map(Column, ("loss", "time per epoch in seconds", "against sgdf"))
ROWS = [
    ["sgdf", "a filter in the place of momentum, which is a long text", "0.1250", "17.25", "-"],
    ["a-very-long-name-of-an-optimizer", "short", "11.5", "1234567.25", "+0.25 ± 0.125"],
]
NUMBERS = [cell for row in ROWS for cell in row[2:]]


def printed(width):
    screen = console.Console(file=io.StringIO(), width=width, highlight=False)
    screen.print(as_rich(COLUMNS, ROWS, width, title="A title", caption="a caption"))
    return screen.file.getvalue()


@pytest.mark.parametrize("width", [44, 50, 60, 70, 80, 100, 120, 400])
def test_numbers_stay_whole_and_lines_fit(width):
    shown = printed(width)
    assert max(map(columns_of, shown.splitlines())) <= width
    assert "…" not in shown
    for number in NUMBERS:
        assert f"{number}\n" in shown or f"{number} " in shown, number


def test_a_wide_terminal_has_one_table_without_wrapped_text():
    assert [part.columns for part in fitting(COLUMNS, ROWS, 400)] == [[0, 1, 2, 3, 4]]
    assert "a filter in the place of momentum, which is a long text" in printed(400)


def test_labels_are_repeated_in_every_part():
    parts = list(fitting(COLUMNS, ROWS, 60))
    assert len(parts) > 1
    assert all(part.columns[0] == 0 for part in parts)
    assert sorted({i for part in parts for i in part.columns}) == [0, 1, 2, 3, 4]


def test_names_with_brackets_are_text():
    screen = console.Console(file=io.StringIO(), width=80)
    screen.print(as_rich([Column("", "label"), Column("x")], [["[red]evil", "1"]], 80))
    assert "[red]evil" in screen.file.getvalue()


@pytest.mark.parametrize(("text", "width"), [("m̂", 1), ("‖raw‖", 5), ("汉字", 4)])
def test_the_width_of_a_text(text, width):
    assert columns_of(text) == width


@pytest.mark.parametrize("width", [20, 33, 40])
def test_a_line_on_a_terminal_breaks_no_word(width):
    words = "epoch 12/200, 1003854 tokens, 1:02:03 left in /a/path/that/is/longer/than/a/line 0.125"
    terminal = console.Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system=None
    )
    say(terminal, words)
    lines = terminal.file.getvalue().splitlines()
    assert len(lines) > 2
    assert " ".join(line.strip() for line in lines) == words
    pipe = console.Console(file=io.StringIO(), width=width)
    say(pipe, words)
    assert pipe.file.getvalue() == words + "\n", "whole in a file"

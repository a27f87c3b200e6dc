"""Several tasks side by side: who is ahead of a reference, and how often."""

import copy
import json
import math
import re

import pytest

from report.test_evidence import DIGITS, FINALS, TEXT, summary_of
from sgdf_lab.cli.main import main
from sgdf_lab.reports.evidence import across, checked
from sgdf_lab.support.errors import UserError

#: What the command turns into one sentence.
DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, UserError, ValueError)
BETTER, WORSE = [10, 11.01, 12], [-10, -9.01, -8]


@pytest.fixture(scope="module")
def summaries(tmp_path_factory):
    """K is ahead of AdamW on both tasks; 2K is behind on digits, and on text nothing is clear."""
    found = []
    for table, sign, last in ((DIGITS, 1, WORSE), (TEXT, -1, [0, 1.5, 1.9])):
        shift = [[0, 1, 2], BETTER, last]
        seeds = [[50 + sign * value for value in values] for values in shift]
        name = table["task"]
        trials = [[50, *(50 - 20 * sign * i for i in (1, 2, 3))]] * 3
        summary = summary_of(tmp_path_factory.mktemp(name), table, trials, seeds)
        found.append({**summary, "name": name})
    return found


def test_who_is_ahead_and_how_often(summaries):
    found = across.across(summaries, "adamw")
    assert found.reference == "AdamW"
    assert [s.label for s in found.standings] == ["FilterAdamW, K", "FilterAdamW, 2K"]
    assert [(s.count("ahead"), s.count("behind"), s.tasks) for s in found.standings] == [
        (2, 0, 2),
        (0, 1, 2),
    ]
    assert across.across(summaries, "AdamW") == found, "by its label too"


def test_the_table_has_a_column_for_each_task(summaries):
    table = across.table(across.across(summaries, "adamw"))
    assert table.columns == ("digits", "text", "ahead, behind")
    assert table.rows[0] == ("FilterAdamW, K", "+10.00 ahead", "−10.0033 ahead", "2, 0 of 2")
    assert table.rows[1][1:3] == ("−10.00 behind", "−0.1333")
    assert "of a test loss, below 0 is better" in table.caption


def test_a_task_without_the_contestant_is_empty(summaries):
    other = copy.deepcopy(summaries[1])
    other["contestants"] = [c for c in other["contestants"] if c["label"] != "FilterAdamW, 2K"]
    rows = other["comparisons"][0]["rows"]
    rows[:] = [row for row in rows if row["contestant"] != "FilterAdamW, 2K"]
    table = across.table(across.across([summaries[0], other], "adamw"))
    assert table.rows[1][2:] == ("–", "0, 1 of 1")
    assert len(across.figure(across.across([summaries[0], other], "adamw")).axes) == 2


def test_right_is_better_in_every_panel(summaries):
    drawn = across.figure(across.across(summaries, "adamw"))
    for axes in drawn.axes:
        (best,) = [line for line in axes.lines if list(line.get_ydata()) == [1]]
        assert best.get_xdata()[0] == pytest.approx(10, abs=0.01), "K, ahead on both"
    assert [axes.get_xlabel() for axes in drawn.axes] == ["points", "nats/token"]


def test_a_task_without_the_reference_is_left_out(summaries):
    other = {**summaries[1], "comparisons": []}
    assert across.table(across.across([summaries[0], other], "adamw")).columns[:-1] == ("digits",)


def test_an_unknown_reference_is_named(summaries):
    with pytest.raises(
        UserError, match="there is no reference 'adam': did you mean adamw or AdamW\\?"
    ):
        across.across(summaries, "adam")


def test_one_word_for_two_references_is_refused(summaries):
    """Their columns would be differences to different contestants."""
    first, second = copy.deepcopy(summaries)
    for summary, label in ((first, "FilterAdamW, K"), (second, "FilterAdamW, 2K")):
        summary["comparisons"][0]["reference"] = label
    with pytest.raises(UserError, match="is FilterAdamW, K on one task and FilterAdamW, 2K on"):
        across.across([first, second], "filter-adamw")


def test_a_task_without_intervals_has_an_empty_panel(summaries):
    one = copy.deepcopy(summaries)
    for row in one[0]["comparisons"][0]["rows"]:
        row.update(low=None, high=None, p=None, p_holm=None, verdict="")
    across.figure(across.across(one, "adamw"))


def test_without_a_usual_reference_one_has_to_be_named(tmp_path, summaries, capsys):
    own = copy.deepcopy(summaries[0])
    own["comparisons"][0]["reference"] = "FilterAdamW, K"
    (tmp_path / "summary.json").write_text(json.dumps(own))
    assert main(["evidence", "--across", str(tmp_path / "summary.json")]) == 1
    assert "name one with --reference" in capsys.readouterr().err


def test_an_incomplete_task_is_refused(tmp_path):
    seeds = [[80, 81, 82], [84, 84, 85], [80, 82, None]]
    summary = summary_of(tmp_path, DIGITS, FINALS, seeds)
    with pytest.raises(UserError, match="ours is not complete"):
        across.across([summary], "adamw")


def test_the_command_line(tmp_path, summaries, capsys):
    files = []
    for summary in summaries:
        files.append(tmp_path / f"{summary['name']}.json")
        files[-1].write_text(json.dumps(summary))
    words = ["evidence", "--across", *map(str, files), "--out", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Against AdamW" in shown
    assert "+10.00 ahead" in shown
    assert (tmp_path / "across-adamw.svg").stat().st_size > 1000
    assert main([*words, "--markdown"]) == 0
    assert "| FilterAdamW, K | +10.00 ahead |" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", "1e999", "[" * 10000,
                                     '{"version": 99, "contestants": [1]}'])  # fmt: skip
def test_a_file_that_is_no_summary(tmp_path, content, capsys):
    file = tmp_path / "summary.json"
    file.write_text(content)
    assert main(["evidence", "--across", str(file)]) == 1
    assert "is not a summary of sgdf evidence" in capsys.readouterr().err


def parts_of(value, path=()):
    """Every place in a summary, outer ones first."""
    yield path
    items = {**value} if isinstance(value, dict) else {}
    items |= dict(enumerate(value)) if isinstance(value, list) else {}
    for key, part in items.items():
        yield from parts_of(part, (*path, key))


def test_a_damaged_summary_is_refused_or_does_no_harm(tmp_path, summaries, capsys):
    """Whatever part is gone or of another kind: a reason, or the table and the figure."""
    small = copy.deepcopy(summaries[0])
    for contestant in small["contestants"]:
        contestant["trials"] = contestant["trials"][:1]
    places = [path for path in parts_of(small) if path and "settings" not in path]
    damages = (None, "x", [], {}, -1, math.inf, True, {"a": 1}, ["b"])
    refused = 0
    for number, path in enumerate(places):
        damaged = copy.deepcopy(small)
        place = damaged
        for key in path[:-1]:
            place = place[key]
        if number % 3 == 0 and isinstance(place, dict):
            del place[path[-1]]
        else:
            place[path[-1]] = damages[number % len(damages)]
        try:
            found = across.across([checked(damaged)], "AdamW")
            across.table(found)
            if number % 20 == 0:
                across.figure(found)
        except DAMAGED:
            refused += 1
    assert refused > len(places) / 8
    file = tmp_path / "summary.json"
    for damage in ({"metric": None}, {"comparisons": 3}, {"contestants": [{}]}):
        file.write_text(json.dumps({**small, **damage}))
        assert main(["evidence", "--across", str(file)]) == 1
        assert re.search(
            "summary.json is not (a summary of|as) sgdf evidence", capsys.readouterr().err
        )


def test_a_sweep_or_summaries_not_both(tmp_path, capsys):
    assert main(["evidence", "a.toml", "--across", str(tmp_path / "summary.json")]) == 1
    assert "not both" in capsys.readouterr().err

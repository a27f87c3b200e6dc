"""The forest plot shows the numbers of the table."""

from pathlib import Path

import plotly.graph_objects as go
import pytest
from sgdf_lab.report.difference_chart import bounds, difference_charts
from sgdf_lab.report.drawing import Chart

from report import made
from sgdf_lab.report.numbers import PairedDifference


def chart(out: Path) -> Chart:
    (drawn,) = difference_charts(made.compare(out))
    go.Figure(drawn.data, drawn.layout)  # raises where a name or value is not plotly's
    return drawn


def test_every_difference_has_its_interval(tmp_path: Path) -> None:
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60.0 + seed])
        made.run(tmp_path, made.config("adam", seed), [50, 55, 50.0 + 1.1 * seed])
    made.run(tmp_path, made.config("lion", 0), [50, 55, 58])
    made.run(tmp_path, made.config("radam", 5), [50, 55, 58])  # no seed in common
    drawn = chart(tmp_path)
    adam, lion = drawn.data
    assert (adam["x"], adam["error_x"]["array"]) == ([-9.95], [0.6353])
    assert (lion["x"], lion["marker"]["symbol"], "error_x" in lion) == ([-2], "circle-open", False)
    rows = [text["text"] for text in drawn.layout["annotations"]]
    assert "<b>adam</b>  −9.95 [−10.59,\xa0−9.31] behind" in rows
    assert "<b>lion</b>  −2.00, n = 1: no interval" in rows
    assert rows[-2:] == ["← worse", "better →"]
    low, high = drawn.layout["xaxis"]["range"]
    assert (low < -10.59, high > 0) == (True, True)
    assert "Open circles" in drawn.caption
    title = drawn.layout["xaxis"]["title"]["text"]
    assert title == "difference in final test accuracy, points"
    assert drawn.title == "Differences from sgdf"


def test_of_a_distance_the_left_is_better(tmp_path: Path) -> None:
    for name, fid in (("sgdf", 80.0), ("adam", 90.0)):
        config = made.config(name, task="wgan-gp", epochs=2)
        made.run(tmp_path, config, [1, 1], extra={"fid": [99.0, fid]})
    assert [t["text"] for t in chart(tmp_path).layout["annotations"]][-2:] == [
        "← better", "worse →"
    ]  # fmt: skip


def test_settings_that_were_not_chosen_are_left_out(tmp_path: Path) -> None:
    for lr, final in ((0.1, 60.0), (0.3, 70.0)):
        for name in ("sgdf", "sgd"):
            values = [50, 55, final]
            config = made.config(name, lr=lr, validation=9)
            made.run(tmp_path, config, values, extra={"validation_accuracy": values})
    assert [trace["name"] for trace in chart(tmp_path).data] == ["sgdf, lr 0.3"]


def test_nothing_to_compare_is_no_chart(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [50, 55, 60])
    assert difference_charts(made.compare(tmp_path)) == []


def test_one_wide_interval_does_not_stretch_the_axis() -> None:
    narrow = [PairedDifference(3, mean, mean - 0.5, mean + 0.5) for mean in (-0.5, 0.1, 0.4)]
    low, high = bounds([*narrow, PairedDifference(2, 0.0, -80.0, 80.0)])
    assert (-3 < low < -1, 0.9 < high < 3) == (True, True)


def test_a_hopeless_rival_is_marked_at_the_edge(tmp_path: Path) -> None:
    finals = {"sgdf": 97.0, "radam": 96.0, "adam": 97.5, "lion": 8.89}
    for name, final in finals.items():
        for seed in (0, 1):
            made.run(tmp_path, made.config(name, seed), [8.0, 9.0, final + seed * len(name) / 50])
    drawn = chart(tmp_path)
    low, _ = drawn.layout["xaxis"]["range"]
    assert -5 < low < -1
    (mark,) = [t for t in drawn.data if t["marker"]["symbol"] == "triangle-left"]
    assert mark["x"] == [low]
    assert "A triangle at the edge" in drawn.caption


@pytest.mark.parametrize("name", ["<img src=x>", "a" * 300])
def test_names_are_text(tmp_path: Path, name: str) -> None:
    made.run(tmp_path, made.config("sgdf"), [50, 55, 60])
    made.run(tmp_path, made.hostile(name), [50, 55, 58])
    words = chart(tmp_path).layout["annotations"][0]["text"]
    assert "<img" not in words
    assert max(map(len, words.split("<br>"))) < 80

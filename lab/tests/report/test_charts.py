from pathlib import Path

import plotly.graph_objects as go
import pytest
from sgdf_lab.report.charts import all_charts
from sgdf_lab.report.drawing import Chart, dark_colours, plain

from report import made
from sgdf_lab import optimizers
from sgdf_lab.optimizers import style
from sgdf_lab.report.cells import cells_by_task
from sgdf_lab.report.curves import optimizer_colours
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.palette import ON_DARK


def charts(out: Path) -> dict[str, Chart]:
    (cells,) = cells_by_task(read_runs([out])[0])
    return {chart.name: chart for chart in all_charts(cells)}


def visible_lines(chart: Chart) -> dict[str, dict]:
    return {t["name"]: t for t in chart.data if t["visible"] and t.get("showlegend", True)}


def test_lines_are_means_and_bands_reach_from_the_lowest_seed_to_the_highest(
    tmp_path: Path,
) -> None:
    for seed, accuracies in enumerate([[10, 20, 30], [20, 30, 70], [30, 31, 50.12345]]):
        made.run(tmp_path, made.config(seed=seed), accuracies)
    band, line = [t for t in charts(tmp_path)["metric"].data if t["visible"]]
    assert line["x"] == [1, 2, 3]
    assert line["y"] == [20, 27, 50.04]  # four digits
    assert band["x"] == [1, 2, 3, 3, 2, 1]
    assert band["y"] == [30, 31, 70, 30, 20, 10]


def test_a_diverged_run_does_not_widen_the_range(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [10, 20, 30])
    made.run(tmp_path, made.config("sgd"), [9e6, 9e7], status="diverged")
    chart = charts(tmp_path)["metric"]
    low, high = chart.layout["yaxis"]["range"]
    assert (low < 10, 30 < high < 40) == (True, True)
    assert visible_lines(chart)["sgd"]["y"] == [9e6, 9e7]


def test_cells_that_hardly_learned_are_marked_at_the_edge(tmp_path: Path) -> None:
    for name, final in (("sgdf", 97.0), ("sgd", 95.0), ("adam", 8.89)):
        made.run(tmp_path, made.config(name), [60.0 if final > 9 else 8.89, 90.0, final])
    chart = charts(tmp_path)["metric"]
    low, high = chart.layout["yaxis"]["range"]
    assert (50 < low < 60, 97 < high < 100) == (True, True)
    (mark,) = [t for t in chart.data if t["visible"] and t.get("showlegend") is False]
    assert (mark["name"], mark["y"]) == ("adam", [low])
    assert mark["marker"] == {
        "color": style("adam").colour, "size": 11, "symbol": "triangle-down"
    }  # fmt: skip
    assert mark["hovertemplate"] == "ends at 8.89 %"
    assert "A triangle at the edge" in chart.caption


def test_one_bad_epoch_of_a_long_run_does_not_widen_the_range(tmp_path: Path) -> None:
    values = made.curve(90, 200)
    values[120] = 5.0
    made.run(tmp_path, made.config("sgdf", epochs=200), values)
    low, _ = charts(tmp_path)["metric"].layout["yaxis"]["range"]
    assert 70 < low < 85


def test_every_chart_is_one_that_plotly_accepts(tmp_path: Path) -> None:
    norms = {"gradient_norm": 1.5, "direction_norm": 0.5, "validation_accuracy": 3.0}
    for seed in (0, 1):
        for lr in (0.1, 0.3):
            with_norms = made.config(seed=seed, lr=lr, norms=True, validation=9)
            made.run(tmp_path, with_norms, [1, 2, 3], extra=norms)
    found = charts(tmp_path)
    assert list(found) == ["metric", "loss", "norms", "learning-rate"]
    for chart in found.values():
        go.Figure(chart.data, chart.layout)  # raises where a name or value is not plotly's
    assert [b["label"] for b in found["metric"].layout["updatemenus"][0]["buttons"]] == [
        "test", "validation", "training"
    ]  # fmt: skip


def test_a_button_shows_only_the_traces_of_its_view(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [10, 20, 30])
    made.run(tmp_path, made.config("adam"), [11, 21, 31])
    chart = charts(tmp_path)["metric"]
    test, training = chart.layout["updatemenus"][0]["buttons"]
    for button, first in ((test, [10, 11]), (training, [9, 10])):
        shown = [
            trace["y"][0]
            for trace, on in zip(chart.data, button["args"][0]["visible"], strict=True)
            if on
        ]
        assert shown == first
    assert training["args"][1]["yaxis.title"]["text"] == "training accuracy, %"


def test_cells_that_were_not_chosen_are_hidden_until_clicked_in_the_legend(tmp_path: Path) -> None:
    for lr in (0.1, 0.3):
        made.run(tmp_path, made.config("sgd", lr=lr), [10, 20, 30])
    (cells,) = cells_by_task(read_runs([tmp_path])[0])
    chart, *_ = all_charts(cells, {"sgd, lr 0.1"})
    assert [trace["visible"] for trace in chart.data] == ["legendonly", True, False, False]
    back = chart.layout["updatemenus"][0]["buttons"][1]["args"][0]["visible"]
    assert back == [False, False, "legendonly", True]
    assert "not chosen" in chart.caption


def test_the_drops_of_the_learning_rate_are_marked(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf", milestones=(2,)), [10, 20, 30])
    made.run(tmp_path, made.config("adam", schedule="cosine", milestones=(1,)), [10, 20, 30])
    layout = charts(tmp_path)["metric"].layout
    assert [line["x0"] for line in layout["shapes"]] == [2.5]
    assert layout["annotations"][0]["text"] == "lr × 0.1"


def test_a_diverged_run_is_drawn_up_to_its_divergence(tmp_path: Path) -> None:
    made.run(tmp_path, made.config("sgdf"), [10, 20], status="diverged")
    made.run(tmp_path, made.config("adam"), [10, 20, 30])
    made.run(tmp_path, made.config("lion", 0), [], status="diverged")
    lines = visible_lines(charts(tmp_path)["metric"])
    assert lines["sgdf"]["y"] == [10, 20]
    assert lines["adam"]["y"] == [10, 20, 30]
    assert "lion" not in lines


def test_one_epoch_is_a_point(tmp_path: Path) -> None:
    made.run(tmp_path, made.config(epochs=1), [10])
    chart = charts(tmp_path)["metric"]
    assert chart.data[0]["mode"] == "markers"
    assert chart.layout["xaxis"]["range"] == [0, 2]


def test_sensitivity_has_a_point_per_learning_rate(tmp_path: Path) -> None:
    for lr, final in ((0.1, 30), (0.3, 50), (1.0, 40)):
        made.run(tmp_path, made.config("sgd", 0, lr=lr), [1, 60, final])
        made.run(tmp_path, made.config("sgd", 1, lr=lr), [1, 60, final + 4])
    made.run(tmp_path, made.config("sgd", 0, lr=3.0), [1], status="diverged")
    made.run(tmp_path, made.config("adam", 0), [1, 2, 3])
    chart = charts(tmp_path)["learning-rate"]
    final, cross, best, _ = chart.data
    assert (final["x"], final["y"]) == ([0.1, 0.3, 1.0], [32, 52, 42])
    assert final["error_y"]["array"] == [2, 2, 2]
    assert best["y"] == [60, 60, 60]
    assert (cross["x"], cross["y"]) == ([3.0], [28.8])  # below all points, by 5 % of 30 to 54
    assert chart.layout["xaxis"]["type"] == "log"


def test_crosses_of_several_optimizers_do_not_overlap(tmp_path: Path) -> None:
    for name in ("sgdf", "sgd"):
        made.run(tmp_path, made.config(name, lr=0.1), [1, 2, 3])
        made.run(tmp_path, made.config(name, lr=3.0), [1], status="diverged")
    chart = charts(tmp_path)["learning-rate"]
    lost = [t for t in chart.data if t["visible"] and not t.get("showlegend", True)]
    first, second = (trace["y"][0] for trace in lost)
    assert second < first < 3
    assert "A cross" in chart.caption


def test_hopeless_rates_do_not_stretch_the_axis(tmp_path: Path) -> None:
    for lr, final in ((0.1, 95), (0.3, 97), (1.0, 96), (3.0, 8.89)):
        made.run(tmp_path, made.config("sgd", 0, lr=lr), [8.89, 8.89, final])
    chart = charts(tmp_path)["learning-rate"]
    line, mark, *_ = chart.data
    low, high = chart.layout["yaxis"]["range"]
    assert (94 < low < 95, 97 < high < 98) == (True, True)
    assert line["y"] == [95, 97, 96, 8.89]  # the line leaves the axis
    assert (mark["x"], mark["text"]) == ([3.0], ["8.89 %"])
    assert low < mark["y"][0] < 95
    assert "A triangle at the bottom" in chart.caption


def test_one_failed_seed_is_marked_and_does_not_stretch_the_axis(tmp_path: Path) -> None:
    for lr, final in ((0.1, 95), (0.3, 97), (1.0, 96)):
        for seed in (0, 1, 2):
            end = 10 if (lr, seed) == (1.0, 2) else final + seed / 10
            made.run(tmp_path, made.config("sgd", seed, lr=lr), [10, 10, end])
    chart = charts(tmp_path)["learning-rate"]
    mark = chart.data[1]
    assert (mark["x"], mark["text"]) == ([1.0], ["10 %"])
    assert 50 < chart.layout["yaxis"]["range"][0] < 68  # the mean of that rate is 67.4


def test_of_a_distance_the_marks_are_at_the_top(tmp_path: Path) -> None:
    for lr, fid in ((0.1, 80.0), (0.3, 70.0), (1.0, 400.0)):
        config = made.config("sgd", task="wgan-gp", epochs=2, lr=lr)
        made.run(tmp_path, config, [1, 1], extra={"fid": [400.0, fid]})
    chart = charts(tmp_path)["learning-rate"]
    mark = chart.data[1]
    assert (mark["x"], mark["marker"]["symbol"]) == ([1.0], "triangle-up")
    assert 80 < mark["y"][0] < chart.layout["yaxis"]["range"][1] < 90


def test_a_line_over_learning_rates_mixes_nothing_else(tmp_path: Path) -> None:
    for lr in (0.1, 0.3):
        made.run(tmp_path, made.config("sgd", lr=lr), [1, 2, 3])
    made.run(tmp_path, made.config("sgd", lr=0.1, momentum=0.5), [1, 2, 3])
    assert "learning-rate" not in charts(tmp_path)


def test_each_optimizer_of_the_lab_has_a_look_of_its_own() -> None:
    looks = [style(name) for name in optimizers.OPTIMIZERS]
    assert len(set(looks)) == len(looks)
    assert style("someones.Optimizer") == style("someones.Optimizer")


OFTEN_COMPARED = (
    ("sgdf", "sgd", "adam", "filter-adam"),
    ("sgdf", "filter-adam", "filter-adamw", "sgd", "adam", "adamw", "lion", "muon"),
    ("sgdf", "sgd", "sgd-ema", "sgd-cm"),
    ("sgdf", "sgd", "adam", "adamw", "radam", "msvag", "lion", "sophia-g", "adabound", "adabelief"),
)


@pytest.mark.parametrize("names", OFTEN_COMPARED, ids=len)
def test_what_is_often_compared_has_colours_of_its_own(names: tuple[str, ...]) -> None:
    assert len({style(name).colour for name in names}) == len(names)


def test_a_chart_has_a_colour_for_each_optimizer(tmp_path: Path) -> None:
    """Also for two of the same colour: an optimizer and the same one behind the filter."""
    names = ["sgdf", "adam", "wiener-adam", "nadam", "shampoo", "soap"]
    for name in names:
        made.run(tmp_path, made.config(name, lr=0.01), [1, 2, 3])
    (cells,) = cells_by_task(read_runs([tmp_path])[0])
    colours = optimizer_colours(cells)
    assert len(set(colours.values())) == len(names)
    assert colours["sgdf"] == style("sgdf").colour
    drawn = {t["line"]["color"] for t in visible_lines(charts(tmp_path)["metric"]).values()}
    assert drawn == set(colours.values())


def test_every_colour_stands_out_on_its_page() -> None:
    """Contrast of at least 2 to 1, by the formula of the web's accessibility guidelines."""
    dark = dark_colours()
    for light, on_dark in ON_DARK.items():
        assert contrast(light, "#ffffff") > 2
        assert contrast(on_dark, dark["#ffffff"]) > 4
    assert contrast(dark["#222222"], dark["#ffffff"]) > 10
    assert len(set(dark.values())) == len(dark)


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_cells_of_one_optimizer_share_its_colour_and_differ_in_dash(tmp_path: Path) -> None:
    for lr in (0.1, 0.3):
        made.run(tmp_path, made.config("sgd", lr=lr), [1, 2, 3])
    first, second = visible_lines(charts(tmp_path)["metric"]).values()
    assert first["line"]["color"] == second["line"]["color"] == style("sgd").colour
    assert first["line"]["dash"] != second["line"]["dash"]


@pytest.mark.parametrize("name", ["<b>bold</b>", '<a href="https://example.org">x</a>', "&lt;"])
def test_plotlys_markup_is_escaped(name: str) -> None:
    assert "<" not in plain(name)
    assert plain(name) != name


def test_a_task_is_drawn_by_its_own_metric(tmp_path: Path) -> None:
    """A distance that is not measured in every epoch, and a loss that may be negative."""
    config = made.config("sgdf", task="wgan-gp", epochs=3)
    extra = {"fid": [90.0, None, 70.0], "train_loss": [1.0, -2.0, -3.0]}
    made.run(tmp_path, config, [1, 1, 1], extra=extra)
    drawn = charts(tmp_path)
    line = visible_lines(drawn["metric"])["sgdf"]
    assert (line["x"], line["y"]) == ([1, 3], [90.0, 70.0])
    assert drawn["metric"].title == "FID"
    assert drawn["metric"].layout["yaxis"]["title"]["text"] == "FID"
    assert drawn["loss"].layout["yaxis"]["type"] == "linear"


def test_validation_of_a_task_that_is_not_measured_by_accuracy(tmp_path: Path) -> None:
    config = made.config(task="voc", validation=9, epochs=3)
    measured = {f"{part}_{key}": [1.0, 2.0, 3.0]
                for part in ("test", "validation") for key in ("ap50", "ap", "voc_ap")}  # fmt: skip
    made.run(tmp_path, config, [1, 2, 3], extra=measured)
    chart = charts(tmp_path)["metric"]
    labels = [button["label"] for button in chart.layout["updatemenus"][0]["buttons"]]
    assert labels.count("validation") == 1
    (shown,) = (b for b in chart.layout["updatemenus"][0]["buttons"] if b["label"] == "validation")
    assert shown["args"][1]["yaxis.title"]["text"] == "validation mAP at IoU 0.5, %"
    assert True in shown["args"][0]["visible"]

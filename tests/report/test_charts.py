from pathlib import Path

import plotly.graph_objects as go
import pytest

from report import made
from sgdf.lab import optimizers
from sgdf.lab.optimizers import style
from sgdf.report.cells import cells_by_task
from sgdf.report.charts import Chart, all_charts, plain
from sgdf.report.records import read_runs


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


def test_a_line_over_learning_rates_mixes_nothing_else(tmp_path: Path) -> None:
    for lr in (0.1, 0.3):
        made.run(tmp_path, made.config("sgd", lr=lr), [1, 2, 3])
    made.run(tmp_path, made.config("sgd", lr=0.1, momentum=0.5), [1, 2, 3])
    assert "learning-rate" not in charts(tmp_path)


def test_each_optimizer_of_the_lab_has_a_look_of_its_own() -> None:
    looks = [style(name) for name in optimizers.OPTIMIZERS]
    assert len(set(looks)) == len(looks)
    assert style("someones.Optimizer") == style("someones.Optimizer")


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

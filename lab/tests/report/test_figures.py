"""What is drawn of a comparison, for the page and for files: the numbers of its runs."""

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from report import made
from sgdf_lab import optimizers
from sgdf_lab.cli.main import main
from sgdf_lab.optimizers import style
from sgdf_lab.reports import figures
from sgdf_lab.reports.comparison import compare_runs
from sgdf_lab.reports.curves import optimizer_colours
from sgdf_lab.reports.figures import Interval, axis_edges
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.figures import inline_svg
from sgdf_lab.support.palette import INK, ON_DARK, PAGE_ON_DARK, PAPER


def charts(out: Path) -> dict[str, figures.Chart]:
    comparison = made.compare(out)
    drawn = [*figures.charts(comparison), *figures.rates_charts(comparison)]
    return {chart.title: chart for chart in drawn}


def lines(figure: Figure) -> dict[str, tuple[list[float], list[float]]]:
    """By label, the points of each line of the first axes."""
    named = (line for line in figure.axes[0].get_lines() if not line.get_label().startswith("_"))
    return {n.get_label(): (list(n.get_xdata()), list(n.get_ydata())) for n in named}


# --- over the epochs -----------------------------------------------------------------------------


def test_lines_are_means_and_bands_reach_from_the_lowest_seed_to_the_highest(tmp_path):
    for seed, accuracies in enumerate([[10, 20, 30], [20, 30, 70], [30, 31, 50]]):
        made.run(tmp_path, made.config(seed=seed), accuracies)
    figure = charts(tmp_path)["Test accuracy"].figure
    assert lines(figure) == {"sgdf": ([1, 2, 3], [20, 27, 50])}
    (band,) = figure.axes[0].collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert {(1, 10), (1, 30), (2, 20), (2, 31), (3, 30), (3, 70)} == corners


def test_everything_that_was_measured_has_a_chart(tmp_path):
    norms = {"gradient_norm": 1.5, "direction_norm": 0.5, "validation_accuracy": 3.0}
    for lr in (0.1, 0.3):
        with_norms = made.config(lr=lr, norms=True, validation=9)
        made.run(tmp_path, with_norms, [1, 2, 3], extra=norms)
    assert list(charts(tmp_path)) == [
        "Test accuracy", "Validation accuracy", "Training accuracy", "Training loss", "Test loss",
        "Gradient norm", "Norm of the step direction", "Test accuracy by learning rate",
    ]  # fmt: skip


def test_means_and_an_enlarged_end(tmp_path):
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed, epochs=4), [10, 20, 30, 40 + 2 * seed])
    made.run(tmp_path, made.config("adam", epochs=4), [1, 2, 3, 4])
    figure = figures.epochs_figure(made.compare(tmp_path))
    complete, end = figure.axes
    assert lines(figure) == {
        "sgdf": ([1, 2, 3, 4], [10, 20, 30, 41]), "adam": ([1, 2, 3, 4], [1, 2, 3, 4])
    }  # fmt: skip
    assert (complete.get_xlim(), end.get_xlim()) == ((1, 4), (4, 5))
    assert complete.get_ylabel() == "test accuracy, %"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sgdf", "adam"]


def test_a_diverged_run_is_drawn_up_to_its_divergence_and_does_not_widen_the_range(tmp_path):
    made.run(tmp_path, made.config("sgdf"), [10, 20, 30])
    made.run(tmp_path, made.config("sgd"), [9e6, 9e7], status="diverged")
    made.run(tmp_path, made.config("lion"), [], status="diverged")
    figure = charts(tmp_path)["Test accuracy"].figure
    assert lines(figure) == {"sgdf": ([1, 2, 3], [10, 20, 30]), "sgd": ([1, 2], [9e6, 9e7])}
    low, high = figure.axes[0].get_ylim()
    assert (low < 10, 30 < high < 40) == (True, True)


def test_cells_that_hardly_learned_are_marked_at_the_edge(tmp_path):
    for name, final in (("sgdf", 97.0), ("sgd", 95.0), ("adam", 8.89)):
        made.run(tmp_path, made.config(name), [60.0 if final > 9 else 8.89, 90.0, final])
    chart = charts(tmp_path)["Test accuracy"]
    axes = chart.figure.axes[0]
    low, high = axes.get_ylim()
    assert (50 < low < 60, 97 < high < 100) == (True, True)
    (mark,) = [line for line in axes.get_lines() if line.get_marker() == "v"]
    assert (mark.get_color(), list(mark.get_ydata())) == (style("adam").colour, [low])
    assert chart.caption
    assert "<title>adam: ends at 8.89 %</title>" in inline_svg(chart.figure)


def test_one_bad_epoch_of_a_long_run_does_not_widen_the_range(tmp_path):
    values = made.curve(90, 200)
    values[120] = 5.0
    made.run(tmp_path, made.config("sgdf", epochs=200), values)
    low, _ = charts(tmp_path)["Test accuracy"].figure.axes[0].get_ylim()
    assert 70 < low < 85


def test_cells_that_were_not_chosen_are_left_out(tmp_path):
    for lr, final in ((0.1, 60.0), (0.3, 70.0)):
        for name in ("sgdf", "sgd"):
            values = [50, 55, final]
            config = made.config(name, lr=lr, validation=9)
            made.run(tmp_path, config, values, extra={"validation_accuracy": values})
    assert {*lines(charts(tmp_path)["Test accuracy"].figure)} == {"sgdf, lr 0.3", "sgd, lr 0.3"}
    chart = figures.difference_chart(made.compare(tmp_path))
    assert chart is not None
    assert [t.get_text() for t in chart.figure.axes[0].get_yticklabels()] == ["sgdf, lr 0.3"]


def test_the_drops_of_the_learning_rate_are_marked(tmp_path):
    made.run(tmp_path, made.config("sgdf", milestones=(2,)), [10, 20, 30])
    made.run(tmp_path, made.config("adam", schedule="cosine", milestones=(1,)), [10, 20, 30])
    axes = charts(tmp_path)["Test accuracy"].figure.axes[0]
    assert [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"] == [
        2.5
    ]
    assert [text.get_text() for text in axes.texts] == ["lr × 0.1"]


def test_one_epoch_is_a_point(tmp_path):
    made.run(tmp_path, made.config(epochs=1), [10])
    axes = charts(tmp_path)["Test accuracy"].figure.axes[0]
    assert axes.get_lines()[0].get_marker() == "o"
    assert axes.get_xlim() == (0, 2)


def test_a_task_is_drawn_by_its_own_metric(tmp_path):
    """A distance that is not measured in every epoch, and a loss that may be negative."""
    config = made.config("sgdf", task="wgan-gp", epochs=3)
    extra = {"fid": [90.0, None, 70.0], "train_loss": [1.0, -2.0, -3.0]}
    made.run(tmp_path, config, [1, 1, 1], extra=extra)
    drawn = charts(tmp_path)
    assert lines(drawn["FID"].figure) == {"sgdf": ([1, 3], [90, 70])}
    assert drawn["Training loss"].figure.axes[0].get_yscale() == "linear"
    assert drawn["Test loss"].figure.axes[0].get_yscale() == "log"


def test_a_run_that_diverged_before_the_metric_was_measured_is_left_out(tmp_path):
    for name, fids, status in (("sgdf", [None], "diverged"), ("adam", [None, 70.0], "finished")):
        config = made.config(name, task="wgan-gp", epochs=2)
        made.run(tmp_path, config, [1] * len(fids), status=status, extra={"fid": fids})
    assert lines(figures.epochs_figure(made.compare(tmp_path))) == {"adam": ([2], [70])}


def test_steps_are_drawn_over_time_too(tmp_path):
    config = made.config(task="text", steps=100, eval_every=50)
    losses = {"val_loss": [2.0, 1.5], "bits_per_byte": [3.0, 2.2]}
    made.run(tmp_path, config, [2.0, 1.5], extra=losses, seconds=3.0)
    drawn = charts(tmp_path)
    assert lines(drawn["Validation loss"].figure)["sgdf"] == ([50, 100], [2.0, 1.5])
    assert lines(drawn["Validation loss by time"].figure)["sgdf"] == ([3.0, 6.0], [2.0, 1.5])


# --- differences ---------------------------------------------------------------------------------


def test_every_difference_has_its_interval(tmp_path):
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed), [50, 55, 60.0 + seed])
        made.run(tmp_path, made.config("adam", seed), [50, 55, 50.0 + 1.1 * seed])
    made.run(tmp_path, made.config("lion", 0), [50, 55, 58])
    made.run(tmp_path, made.config("radam", 5), [50, 55, 58])  # no seed in common
    chart = figures.difference_chart(made.compare(tmp_path))
    assert chart is not None
    (axes,) = chart.figure.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["lion", "adam"]
    ends, points = (
        [list(n.get_xdata()) for n in axes.get_lines() if n.get_marker() == marker]
        for marker in ("None", "o")
    )
    assert ends[:2] == [[-2, -2], pytest.approx([-10.5853, -9.3147], abs=1e-4)]
    assert points == [[-2], [pytest.approx(-9.95)]]
    low, high = axes.get_xlim()
    assert (low < -10.59, high > 0) == (True, True)


@pytest.mark.parametrize(("task", "side"), [("wgan-gp", "left"), ("digits", "right")])
def test_the_better_side_is_named(tmp_path, task, side):
    for name, value in (("sgdf", 80.0), ("adam", 90.0)):
        config = made.config(name, task=task, epochs=2)
        made.run(tmp_path, config, [1, value], extra={"fid": [99.0, value]})
    chart = figures.difference_chart(made.compare(tmp_path))
    assert chart is not None
    assert f"({side} is better)" in chart.figure.axes[0].get_xlabel().replace("\n", " ")


def test_nothing_to_compare_is_no_chart(tmp_path):
    made.run(tmp_path, made.config("sgdf"), [50, 55, 60])
    assert figures.difference_chart(made.compare(tmp_path)) is None


def test_one_wide_interval_does_not_stretch_the_axis():
    ends = [(mean - 0.5, mean + 0.5) for mean in (-0.5, 0.1, 0.4)]
    rows = [Interval("", 0.0, low, high, "", "") for low, high in (*ends, (-80.0, 80.0))]
    low, high = axis_edges(rows)
    assert (-3 < low < -0.9, 0.9 < high < 3) == (True, True)


def test_a_far_difference_is_an_arrow_at_the_edge(tmp_path):
    for name, final in {"sgdf": 97.0, "radam": 96.0, "adam": 97.5, "lion": 8.89}.items():
        for seed in (0, 1):
            made.run(tmp_path, made.config(name, seed), [8.0, 9.0, final + seed * len(name) / 50])
    chart = figures.difference_chart(made.compare(tmp_path))
    assert chart is not None
    (axes,) = chart.figure.axes
    low, _ = axes.get_xlim()
    assert -5 < low < -1
    (mark,) = [line for line in axes.get_lines() if line.get_marker() == "<"]
    assert low < mark.get_xdata()[0] < low + 1


@pytest.mark.parametrize("label", ["lion", "filter-adamw, lr 0.00606, weight_decay 0.04834"])
def test_the_words_below_fit_beside_wide_labels(label):
    rows = [Interval(label, 0.5, 0.0, 1.0, "", INK)]
    words = "difference in final test accuracy, points"
    figure = figures.differences_figure(rows, words, lower_is_better=False, digits=2, width=5)
    figure.draw_without_rendering()
    below = figure.axes[0].xaxis.label.get_window_extent()
    assert figure.bbox.x0 <= below.x0 < below.x1 <= figure.bbox.x1


# --- over the learning rate ----------------------------------------------------------------------


def rates(out: Path):
    """The axes over the learning rate: points by label, marks by sign."""
    (axes,) = charts(out)["Test accuracy by learning rate"].figure.axes
    marks: dict[str, list[list[float]]] = {"points": [], "marks": []}
    for collection in axes.collections:
        kind = "points" if collection.get_sizes()[0] == 18 else "marks"
        marks[kind] += collection.get_offsets().tolist()
    return axes, marks


def test_the_learning_rates(tmp_path):
    for lr, final in ((0.1, 50), (0.5, 60)):
        made.run(tmp_path, made.config("sgdf", lr=lr, epochs=2), [20, final])
    made.run(tmp_path, made.config("sgdf", 1, lr=0.5, epochs=2), [20, 64])
    made.run(tmp_path, made.config("sgdf", lr=5.0, epochs=2), [10], status="diverged")
    made.run(tmp_path, made.config("adam", epochs=2), [30, 40])
    axes, marks = rates(tmp_path)
    (line,) = axes.get_lines()  # Adam was run with one
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.1, 0.5], [50, 62])
    assert marks["points"] == [[0.1, 50], [0.5, 60], [0.5, 64]]
    ((x, y),) = marks["marks"]
    assert (x, y < 50) == (5.0, True)


def test_crosses_of_several_optimizers_do_not_overlap(tmp_path):
    for name in ("sgdf", "sgd"):
        made.run(tmp_path, made.config(name, lr=0.1), [1, 2, 3])
        made.run(tmp_path, made.config(name, lr=3.0), [1], status="diverged")
    (_, first), (_, second) = rates(tmp_path)[1]["marks"]
    assert second < first < 3


def test_hopeless_rates_and_seeds_do_not_stretch_the_axis(tmp_path):
    for lr, final in ((0.1, 95), (0.3, 97), (1.0, 96), (3.0, 8.89)):
        for seed in (0, 1, 2):
            end = 10 if (lr, seed) == (1.0, 2) else final + seed / 10
            made.run(tmp_path, made.config("sgd", seed, lr=lr), [8.89, 8.89, end])
    axes, marks = rates(tmp_path)
    low, high = axes.get_ylim()
    assert (50 < low < 68, 97 < high < 99) == (True, True)  # the mean at rate 1 is 67.4
    assert [x for x, _ in marks["marks"]] == [1.0, 3.0]


def test_of_a_distance_the_marks_are_at_the_top(tmp_path):
    for lr, fid in ((0.1, 80.0), (0.3, 70.0), (1.0, 400.0)):
        config = made.config("sgd", task="wgan-gp", epochs=2, lr=lr)
        made.run(tmp_path, config, [1, 1], extra={"fid": [400.0, fid]})
    axes = charts(tmp_path)["FID by learning rate"].figure.axes[0]
    ((x, y),) = axes.collections[-1].get_offsets().tolist()
    assert (x, 80 < y < axes.get_ylim()[1] < 90) == (1.0, True)


def test_a_line_over_learning_rates_mixes_nothing_else(tmp_path):
    for lr in (0.1, 0.3):
        made.run(tmp_path, made.config("sgd", lr=lr), [1, 2, 3])
    made.run(tmp_path, made.config("sgd", lr=0.1, momentum=0.5), [1, 2, 3])
    assert not [title for title in charts(tmp_path) if "learning rate" in title]


# --- colours and names ---------------------------------------------------------------------------


def test_each_optimizer_of_the_lab_has_a_look_of_its_own():
    looks = [style(name) for name in optimizers.OPTIMIZERS]
    assert len(set(looks)) == len(looks)
    assert style("someones.Optimizer") == style("someones.Optimizer")


@pytest.mark.parametrize(
    "names",
    [
        ("sgdf", "sgd", "adam", "filter-adam"),
        ("sgdf", "filter-adam", "filter-adamw", "sgd", "adam", "adamw", "lion", "muon"),
        ("sgdf", "sgd", "sgd-ema", "sgd-cm"),
        ("sgdf", "sgd", "adam", "adamw", "radam", "msvag", "lion", "sophia-g", "adabound",
         "adabelief"),
    ],
    ids=len,
)  # fmt: skip
def test_what_is_often_compared_has_colours_of_its_own(names):
    assert len({style(name).colour for name in names}) == len(names)


def test_two_optimizers_of_one_colour_are_told_apart(tmp_path):
    names = ["sgdf", "adam", "wiener-adam", "nadam", "shampoo", "soap"]
    colours = optimizer_colours(names)
    assert len(set(colours.values())) == len(names)
    assert colours["sgdf"] == style("sgdf").colour
    for lr in (0.1, 0.3):
        made.run(tmp_path, made.config("sgd", lr=lr), [1, 2, 3])
    one, two = figures.cell_looks_of(made.compare(tmp_path).cells).values()
    assert (one.colour == two.colour, one.dash == two.dash) == (True, False)


def test_every_colour_stands_out_on_its_page():
    """Contrast of at least 2 to 1, by the formula of the web's accessibility guidelines."""
    for light, on_dark in ON_DARK.items():
        assert contrast(light, PAPER) > 2
        assert contrast(on_dark, PAGE_ON_DARK[PAPER]) > 4
    assert contrast(PAGE_ON_DARK[INK], PAGE_ON_DARK[PAPER]) > 10


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", ["$\\frac$", "</title><script>", "a" * 300, "\ud800"])
def test_names_are_text(tmp_path, name):
    made.run(tmp_path, made.config("sgdf"), [1, 2, 3])
    made.run(tmp_path, made.hostile(name), [1, 2, 3])
    for chart in charts(tmp_path).values():
        assert "<script" not in inline_svg(chart.figure)
    difference = figures.difference_chart(made.compare(tmp_path))
    assert difference is not None
    assert "<script" not in inline_svg(difference.figure)


# --- files ---------------------------------------------------------------------------------------


def test_the_command_writes_a_figure_for_each_comparison(tmp_path, capsys):
    made.run(tmp_path / "runs", made.config("sgdf", epochs=1), [50])
    for lr in (0.1, 0.5):
        made.run(tmp_path / "runs", made.config(task="cifar10", epochs=2, lr=lr), [50, 60])
    stem = tmp_path / "figures" / "all"
    page = ["-o", str(tmp_path / "page.html")]
    assert main(["report", str(tmp_path / "runs"), *page, "--figure", str(stem)]) == 0
    names = {
        f"all-{name}.{end}" for end in ("png", "svg") for name in ("1", "2")
    } | {"all-1-lr.png", "all-1-lr.svg"}  # fmt: skip
    assert {file.name for file in stem.parent.iterdir()} == names
    assert capsys.readouterr().out.count("A figure is in") == len(names)


def test_the_command_says_if_there_is_nothing_to_draw(tmp_path, capsys):
    made.run(tmp_path / "runs", made.config("sgdf"), [], status=None)
    page = ["-o", str(tmp_path / "page.html")]
    assert main(["report", str(tmp_path / "runs"), *page, "--figure", str(tmp_path / "all")]) == 0
    assert "nothing to draw" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "runs"), *page, "--figure", "."]) == 1
    assert "--figure takes" in capsys.readouterr().err


def test_an_svg_has_dark_colours_too(tmp_path):
    """For every colour in it; a browser takes those of the reader's scheme."""
    for name in ("sgdf", "sophia-g"):
        for seed in (0, 1):
            made.run(tmp_path, made.config(name, seed), [10, 20, 30 + seed])
    _, svg = figures.write_all(compare_runs(read_runs([tmp_path])[0]), tmp_path / "figures" / "all")
    rules, _, drawing = svg.read_text(encoding="utf-8").partition("</style>")
    used = set(re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", drawing))
    assert {"fill: #ffffff", "stroke: #000000", "stroke: #d55e00"} <= used
    assert "prefers-color-scheme: dark" in rules
    assert [colour for colour in used if f'[style*="{colour}"]' not in rules] == []

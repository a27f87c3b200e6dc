"""The curves as a figure: the same numbers as on the page."""

import re
from pathlib import Path

import pytest
from sgdf_lab.report.statistics import compare_runs

from report import made
from sgdf_lab.cli.main import main
from sgdf_lab.report.curves import learning_rate_sweeps
from sgdf_lab.runs.records import read_runs

pytest.importorskip("matplotlib")

from sgdf_lab.report import figures


def figure_of(out: Path):
    (comparison,) = compare_runs(read_runs([out])[0])
    return figures.epochs_figure(comparison)


def test_means_bands_and_an_enlarged_end(tmp_path):
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed, epochs=4), [10, 20, 30, 40 + 2 * seed])
    made.run(tmp_path, made.config("adam", epochs=4), [1, 2, 3, 4])
    figure = figure_of(tmp_path)
    complete, end = figure.axes
    for axes in (complete, end):
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert list(lines["sgdf"].get_ydata()) == [10, 20, 30, 41]
        assert list(lines["adam"].get_ydata()) == [1, 2, 3, 4]
        assert len(axes.collections) == 1  # one seed has no band
    assert complete.get_xlim() == (1, 4)
    assert end.get_xlim() == (4, 5)
    assert complete.get_ylabel() == "test accuracy, %"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sgdf", "adam"]


def test_a_metric_that_is_not_measured_in_every_epoch(tmp_path):
    config = made.config("sgdf", task="wgan-gp", epochs=3)
    made.run(tmp_path, config, [1, 1, 1], extra={"fid": [90.0, None, 70.0]})
    complete, _ = figure_of(tmp_path).axes
    (line,) = complete.get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 3], [90, 70])
    assert complete.get_ylabel() == "FID"


def test_a_run_that_diverged_before_the_metric_was_measured_is_left_out(tmp_path):
    for name, fids, status in (("sgdf", [None], "diverged"), ("adam", [None, 70.0], "finished")):
        config = made.config(name, task="wgan-gp", epochs=2)
        made.run(tmp_path, config, [1] * len(fids), status=status, extra={"fid": fids})
    complete, _ = figure_of(tmp_path).axes
    (line,) = complete.get_lines()
    assert (line.get_label(), list(line.get_ydata())) == ("adam", [70])


def test_the_command_writes_a_figure_for_each_comparison(tmp_path, capsys):
    made.run(tmp_path / "runs", made.config("sgdf", epochs=1), [50])
    made.run(tmp_path / "runs", made.config("sgdf", task="cifar10", epochs=2), [50, 60])
    stem = tmp_path / "figures" / "all"
    page = ["-o", str(tmp_path / "page.html")]
    assert main(["report", str(tmp_path / "runs"), *page, "--figure", str(stem)]) == 0
    names = {f"all-{i}.{ending}" for i in (1, 2) for ending in ("png", "svg")}
    assert {file.name for file in stem.parent.iterdir()} == names
    assert capsys.readouterr().out.count("A figure is in") == 4


def test_the_command_says_if_there_is_nothing_to_draw(tmp_path, capsys):
    made.run(tmp_path / "runs", made.config("sgdf"), [], status=None)
    page = ["-o", str(tmp_path / "page.html")]
    assert main(["report", str(tmp_path / "runs"), *page, "--figure", str(tmp_path / "all")]) == 0
    assert "nothing to draw" in capsys.readouterr().out


def test_the_learning_rates(tmp_path):
    for lr, final in ((0.1, 50), (0.5, 60)):
        made.run(tmp_path, made.config("sgdf", lr=lr, epochs=2), [20, final])
    made.run(tmp_path, made.config("sgdf", 1, lr=0.5, epochs=2), [20, 64])
    made.run(tmp_path, made.config("sgdf", lr=5.0, epochs=2), [10], status="diverged")
    made.run(tmp_path, made.config("adam", epochs=2), [30, 40])
    comparisons = compare_runs(read_runs([tmp_path])[0])
    files = figures.write_all(comparisons, tmp_path / "figures" / "all")
    assert [file.name for file in files] == ["all.png", "all.svg", "all-lr.png", "all-lr.svg"]
    (comparison,) = comparisons
    axes = figures.learning_rate_figure(comparison, learning_rate_sweeps(comparison.cells)).axes[0]
    (line,) = axes.get_lines()  # Adam was run with one
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.1, 0.5], [50, 62])
    points, lost = axes.collections
    assert points.get_offsets().tolist() == [[0.1, 50], [0.5, 60], [0.5, 64]]
    assert [x for x, _ in lost.get_offsets().tolist()] == [5.0]


def test_a_stem_without_a_name_is_one_sentence(tmp_path, capsys):
    made.run(tmp_path, made.config("sgdf"), [1, 2, 3])
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "-o", str(page), "--figure", "."]) == 1
    assert "--figure takes the beginning of a file name" in capsys.readouterr().err


def test_hopeless_rates_do_not_stretch_the_figure(tmp_path):
    for lr, final in ((0.1, 95), (0.3, 97), (1.0, 8.89)):
        made.run(tmp_path, made.config("sgd", lr=lr), [8.89, 8.89, final])
    (comparison,) = compare_runs(read_runs([tmp_path])[0])
    axes = figures.learning_rate_figure(comparison, learning_rate_sweeps(comparison.cells)).axes[0]
    low, high = axes.get_ylim()
    assert (94 < low < 95, 97 < high < 98) == (True, True)
    *_, marks = axes.collections
    assert [x for x, _ in marks.get_offsets().tolist()] == [1.0]
    assert "triangle: outside" in axes.get_xlabel()


def test_an_svg_has_dark_colours_too(tmp_path):
    """For every colour in it; a browser takes those of the reader's scheme."""
    for name in ("sgdf", "sophia-g"):
        for seed in (0, 1):
            made.run(tmp_path, made.config(name, seed), [10, 20, 30 + seed])
    _, svg = figures.write_all(compare_runs(read_runs([tmp_path])[0]), tmp_path / "figures" / "all")
    style, _, drawing = svg.read_text(encoding="utf-8").partition("</style>")
    used = set(re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", drawing))
    assert {"fill: #ffffff", "stroke: #000000", "stroke: #d55e00"} <= used
    assert "prefers-color-scheme: dark" in style
    assert [colour for colour in used if f'[style*="{colour}"]' not in style] == []


def test_a_name_with_dollar_signs_is_not_a_formula(tmp_path):
    made.run(tmp_path, made.hostile("$\\frac$"), [1, 2, 3])
    stem = tmp_path / "figures" / "all"
    figures.write_all(compare_runs(read_runs([tmp_path])[0]), stem)
    assert (stem.parent / "all.svg").exists()

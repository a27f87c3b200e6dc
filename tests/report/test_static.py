"""The curves as a figure: the same numbers as on the page."""

from pathlib import Path

import pytest

from report import made
from sgdf.cli.main import main
from sgdf.report import records, tables

pytest.importorskip("matplotlib")

from sgdf.report import static
from sgdf.report.figures import swept_rates


def figure_of(out: Path):
    (comparison,) = tables.build(records.read([out])[0])
    return static.curves(comparison)


def test_means_bands_and_the_end_from_close_by(tmp_path):
    for seed in (0, 1):
        made.run(tmp_path, made.config("sgdf", seed, epochs=4), [10, 20, 30, 40 + 2 * seed])
    made.run(tmp_path, made.config("adam", epochs=4), [1, 2, 3, 4])
    figure = figure_of(tmp_path)
    whole, end = figure.axes
    for axes in (whole, end):
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert list(lines["sgdf"].get_ydata()) == [10, 20, 30, 41]
        assert list(lines["adam"].get_ydata()) == [1, 2, 3, 4]
        assert len(axes.collections) == 1  # one seed has no band
    assert whole.get_xlim() == (1, 4)
    assert end.get_xlim() == (4, 5)
    assert whole.get_ylabel() == "test accuracy, %"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sgdf", "adam"]


def test_a_metric_that_is_not_measured_in_every_epoch(tmp_path):
    config = made.config("sgdf", task="wgan-gp", epochs=3)
    made.run(tmp_path, config, [1, 1, 1], extra={"fid": [90.0, None, 70.0]})
    whole, _ = figure_of(tmp_path).axes
    (line,) = whole.get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 3], [90, 70])
    assert whole.get_ylabel() == "FID"


def test_the_command_writes_one_for_each_comparison(tmp_path, capsys):
    made.run(tmp_path / "runs", made.config("sgdf", epochs=1), [50])
    made.run(tmp_path / "runs", made.config("sgdf", task="cifar10", epochs=2), [50, 60])
    stem = tmp_path / "figures" / "all"
    page = ["-o", str(tmp_path / "page.html")]
    assert main(["report", str(tmp_path / "runs"), *page, "--figure", str(stem)]) == 0
    names = {f"all-{i}.{ending}" for i in (1, 2) for ending in ("png", "svg")}
    assert {file.name for file in stem.parent.iterdir()} == names
    assert capsys.readouterr().out.count("A figure is in") == 4


def test_nothing_to_draw_is_said(tmp_path, capsys):
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
    comparisons = tables.build(records.read([tmp_path])[0])
    files = static.write_all(comparisons, tmp_path / "figures" / "all")
    assert [file.name for file in files] == ["all.png", "all.svg", "all-lr.png", "all-lr.svg"]
    (comparison,) = comparisons
    axes = static.learning_rates(comparison, swept_rates(comparison.cells)).axes[0]
    (line,) = axes.get_lines()  # Adam was run with one
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.1, 0.5], [50, 62])
    points, lost = axes.collections
    assert points.get_offsets().tolist() == [[0.1, 50], [0.5, 60], [0.5, 64]]
    assert [x for x, _ in lost.get_offsets().tolist()] == [5.0]


def test_a_name_with_dollars_is_no_formula(tmp_path):
    made.run(tmp_path, made.hostile("$\\frac$"), [1, 2, 3])
    stem = tmp_path / "figures" / "all"
    static.write_all(tables.build(records.read([tmp_path])[0]), stem)
    assert (stem.parent / "all.svg").exists()

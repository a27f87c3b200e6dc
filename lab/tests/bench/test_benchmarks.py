"""The scripts in benchmarks/ on a CPU: they run, and their records have what the docs quote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRAINED = "benchmarks/evidence/gpt-124m-encyclopedia.toml"


def started(script, *words):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, f"benchmarks/{script}.py", *words, "--device", "cpu", "--quick"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        **{"cwd": ROOT, "capture_output": True, "text": True},
    )


def recorded(out, script, *words):
    ended = started(script, *words, "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    record = json.loads(out.read_text())
    assert {"command", "commit", "machine"} <= record.keys()
    return record


def test_language_has_times_and_where_they_come_from(tmp_path):
    record = recorded(tmp_path / "bench.json", "language")
    assert "optimizer" in record
    (row,) = record["rows"]
    assert (row["model"], row["batch"], row["context"]) == ("gpt-tiny", 2, 64)
    assert row["parameters"] == 256 * 64 + 2 * 12 * 64**2 + 5 * 64
    assert len(row["bare_ms"]) == len(row["trainer_ms"]) == 2
    mean = sum(row["trainer_ms"]) / 2
    per_step = sum(row["evaluation_ms"]) / 2 / row["steps"]
    assert row["all_in_ms"] == pytest.approx(mean + per_step)
    assert row["flops"] == pytest.approx(6 * row["parameters"] * 128 / (mean / 1000))
    assert row["share_of_peak"] is None


def test_step_times_are_those_of_every_contestant_of_a_file(tmp_path):
    record = recorded(tmp_path / "times.json", "step_times", TRAINED, "--rounds", "1")
    names = [row["optimizer"] for row in record["rows"]]
    assert names == ["adamw", "nadamw", *["filter-adamw"] * 5]
    assert all(row["file"] == Path(TRAINED).stem and row["ms"][0] > 0 for row in record["rows"])
    constant = record["rows"][5]["settings"]
    assert (constant["gain_power"], constant["gain_scale"]) == (0.0, 0.02205)


@pytest.fixture(scope="module")
def why(tmp_path_factory):
    folder = tmp_path_factory.mktemp("why")
    text = folder / "words.txt"
    text.write_bytes(b"every word of it, again and again.\n" * 400)
    small = ("--steps", "8", "--points", "4", "6", "--span", "2", "--replicas", "3", "--truth", "4")
    return recorded(folder / "why.json", "why", *small, "--data", str(text))


def test_why_says_how_it_was_made(why):
    assert "seconds" in why
    assert "--data words.txt --out why.json" in why["command"]  # no folders
    assert why["text"] == "words.txt"
    assert (why["model"], why["parameters"]) == ("gpt-tiny", 256 * 64 + 2 * 12 * 64**2 + 320)
    assert [point["step"] for point in why["points"]] == [4, 6]


def test_the_parts_of_a_point_agree_with_each_other(why):
    for point in why["points"]:
        for metric in ("plain", "adam"):
            average, raw = point[metric]["average"], point[metric]["gradient"]
            assert average["ratio"] == {"value": 1.0, "error": 0.0}
            for row in (average, raw):
                total = row["bias2"]["value"] + row["variance"]["value"]
                assert row["mse"]["value"] == pytest.approx(total)
            ratio = raw["mse"]["value"] / average["mse"]["value"]
            assert raw["ratio"]["value"] == pytest.approx(ratio)
            steps = point["steps"][metric]
            assert steps["average"]["lead"]["value"] == 0
            lead = steps["K"]["decrease"]["value"] - steps["average"]["decrease"]["value"]
            assert steps["K"]["lead"]["value"] == pytest.approx(lead)
            assert len(steps["K"]["tried"]["short"]) == why["replicas"] == 3
            (all_coordinates,) = point["gain_by"]["all"][metric]
            assert (all_coordinates["share"], all_coordinates["energy"]) == pytest.approx((1, 1))
        assert len(point["gains"]) == 1 + 2 * 8 + 1  # embedding, blocks, last norm


def test_a_short_step_along_the_estimate_lowers_the_loss(why):
    """The signs and the twin's weights are right: at the start every direction is downhill."""
    first = why["points"][0]
    for metric in ("plain", "adam"):
        assert first[metric]["average"]["cosine"]["value"] > 0.1
        assert first["steps"][metric]["average"]["short decrease"]["value"] > 0


def test_points_of_why_have_to_lie_in_the_run():
    ended = started("why", "--steps", "8", "--points", "9", "--span", "2")
    assert ended.returncode == 1
    assert "points lie between" in ended.stderr

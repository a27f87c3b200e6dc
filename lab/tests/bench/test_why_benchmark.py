"""benchmarks/why.py on a CPU: it runs, and its record has what docs/why.md quotes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SMALL = (
    *("--quick", "--steps", "8", "--points", "4", "6"),
    *("--span", "2", "--replicas", "3", "--truth", "4"),
)


def ran(*words):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "benchmarks/why.py", "--device", "cpu", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("why")
    text = folder / "words.txt"
    text.write_bytes(b"every word of it, again and again.\n" * 400)
    out = folder / "why.json"
    ended = ran(*SMALL, "--data", str(text), "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    return json.loads(out.read_text())


def test_the_record_says_how_it_was_made(record):
    assert {"commit", "machine", "seconds"} <= record.keys()
    assert record["command"].endswith("--data words.txt --out why.json")  # no folders
    assert record["text"] == "words.txt"
    assert (record["model"], record["parameters"]) == ("gpt-tiny", 256 * 64 + 2 * 12 * 64**2 + 320)
    assert [point["step"] for point in record["points"]] == [4, 6]


def test_the_parts_of_a_point_agree_with_each_other(record):
    for point in record["points"]:
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
            assert len(steps["K"]["tried"]["short"]) == record["replicas"] == 3
            (all_coordinates,) = point["gain_by"]["all"][metric]
            assert (all_coordinates["share"], all_coordinates["energy"]) == pytest.approx((1, 1))
        assert len(point["gains"]) == 1 + 2 * 8 + 1  # embedding, blocks, last norm


def test_a_short_step_along_the_estimate_lowers_the_loss(record):
    """The signs and the twin's weights are right: at the start every direction is downhill."""
    first = record["points"][0]
    for metric in ("plain", "adam"):
        assert first[metric]["average"]["cosine"]["value"] > 0.1
        assert first["steps"][metric]["average"]["short decrease"]["value"] > 0


def test_points_have_to_lie_in_the_run():
    ended = ran("--quick", "--steps", "8", "--points", "9", "--span", "2")
    assert ended.returncode == 1
    assert "points lie between" in ended.stderr

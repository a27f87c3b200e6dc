"""benchmarks/language.py on a CPU: it runs, and its record has what the docs quote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_record_has_times_and_where_they_come_from(tmp_path):
    out = tmp_path / "bench.json"
    words = ["benchmarks/language.py", "--device", "cpu", "--quick", "--out", str(out)]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    record = json.loads(out.read_text())
    assert {"command", "commit", "machine", "optimizer"} <= record.keys()
    (row,) = record["rows"]
    assert (row["model"], row["batch"], row["context"]) == ("gpt-tiny", 2, 64)
    assert row["parameters"] == 256 * 64 + 2 * 12 * 64**2 + 5 * 64
    assert len(row["bare_ms"]) == len(row["trainer_ms"]) == 2
    mean = sum(row["trainer_ms"]) / 2
    per_step = sum(row["evaluation_ms"]) / 2 / row["steps"]
    assert row["all_in_ms"] == pytest.approx(mean + per_step)
    assert row["flops"] == pytest.approx(6 * row["parameters"] * 128 / (mean / 1000))
    assert row["share_of_peak"] is None

"""benchmarks/step_times.py on a CPU: every contestant of a file is timed as the file says."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILE = "benchmarks/evidence/gpt-124m-encyclopedia.toml"


def test_every_contestant_of_a_file_is_timed(tmp_path):
    out = tmp_path / "times.json"
    words = ["benchmarks/step_times.py", FILE, "--device", "cpu", "--quick", "--rounds", "1"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    ended = subprocess.run(
        [sys.executable, *words, "--out", str(out)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    record = json.loads(out.read_text())
    assert {"command", "commit", "machine"} <= record.keys()
    names = [row["optimizer"] for row in record["rows"]]
    assert names == ["adamw", "nadamw", *["filter-adamw"] * 5]
    assert all(row["file"] == Path(FILE).stem and row["ms"][0] > 0 for row in record["rows"])
    constant = record["rows"][5]["settings"]
    assert (constant["gain_power"], constant["gain_scale"]) == (0.0, 0.02205)

"""The queue for a GPU: what it skips, how it stops, and that every command runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu_queue
from gpu_queue import Command, Entry, Queue

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu_queue.py"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty repository with one input, and a script that writes a record."""
    (tmp_path / "plan.toml").write_text("trials = 8\n")
    (tmp_path / "measure.py").write_text(
        "import pathlib, sys, time\n"
        "out = pathlib.Path(sys.argv[1])\n"
        "out.parent.mkdir(parents=True, exist_ok=True)\n"
        "out.write_text('half')\n"
        "time.sleep(float(sys.argv[2]))\n"
        "out.write_text('whole')\n"
    )
    monkeypatch.setattr(gpu_queue, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_queue, "MARGIN", 0.0)
    return tmp_path


def entry(seconds="0", *, resumes=False, minutes=0.0):
    place = f"{gpu_queue.RECORDS}/it.json" if resumes else gpu_queue.OUT
    command = Command(("measure.py", place, seconds), minutes, "it.json", resumes)
    return Entry("it", "a measurement", (command,), ("text",), ("plan.toml",))


def states(queue):
    return [line.state for line in queue.lines]


def taken(which, seconds=60.0, data="abc"):
    queue = Queue(time.monotonic() + seconds)
    queue.take(which, {"text": data})
    return queue


def test_a_measurement_is_recorded_and_not_repeated(root):
    assert states(taken(entry())) == ["done"]
    assert (root / "results" / "it.json").read_text() == "whole"
    (record,) = json.loads((root / "results" / "gpu" / "it.json").read_text())["commands"]
    assert {"command", "commit", "machine", "data", "version", "seconds"} <= record.keys()
    assert record["data"] == {"text": "abc"}
    assert {"torch", "device", "python"} <= record["machine"].keys()
    (root / "measure.py").unlink()  # it would fail
    assert states(taken(entry())) == ["done"]


@pytest.mark.parametrize("change", ["input", "data", "command", "record", "damaged"])
def test_a_change_makes_it_measure_again(root, change):
    first = entry()
    taken(first)
    assert gpu_queue.is_done(first, first.commands[0], {"text": "abc"})
    if change == "input":
        (root / "plan.toml").write_text("trials = 16\n")
    if change == "record":
        (root / "results" / "it.json").unlink()
    if change == "damaged":
        (root / "results" / "gpu" / "it.json").write_text('{"commands": [')
    again = entry("0.0") if change == "command" else first
    sums = {"text": "other" if change == "data" else "abc"}
    assert not gpu_queue.is_done(again, again.commands[0], sums)


def test_a_failure_is_said_and_leaves_no_record(root):
    (root / "measure.py").write_text("raise SystemExit(3)")
    queue = taken(entry())
    assert states(queue) == ["failed"]
    assert "exit code 3" in queue.lines[0].note
    assert not (root / "results").exists()


def test_what_does_not_fit_is_left(root):
    assert states(taken(entry(minutes=2.0))) == ["left"]
    assert states(taken(entry(minutes=2.0, resumes=True))) == ["done"]  # it would have gone on


def test_it_stops_when_the_time_is_up(root):
    """A sweep's record keeps the runs that ended, and the sweep is not done."""
    which = entry("600", resumes=True)
    queue = taken(which, seconds=5.0)
    assert states(queue) == ["left"]
    assert queue.stopped
    assert not gpu_queue.is_done(which, which.commands[0])
    assert not (root / "results" / "gpu").exists()


def test_a_killed_queue_takes_its_command_with_it_and_leaves_no_record(root):
    code = (
        "import sys, time; from pathlib import Path; import gpu_queue as q;"
        f"q.ROOT = Path({str(root)!r});"
        "c = q.Command(('measure.py', q.OUT, '600'), 0.0, 'it.json');"
        "q.Queue(time.monotonic() + 900).take(q.Entry('it', '', (c,)), {})"
    )
    path = os.pathsep.join([str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    queue = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    made = root / gpu_queue.WORK / "records" / "it" / "it.json"
    while not made.exists():
        time.sleep(0.05)
    children = Path(f"/proc/{queue.pid}/task/{queue.pid}/children").read_text().split()
    queue.send_signal(signal.SIGKILL)
    queue.wait()
    for pid in children:
        while Path(f"/proc/{pid}").exists() and "State:\tZ" not in status_of(pid):
            time.sleep(0.05)
    assert made.read_text() == "half"
    assert not (root / "results").exists()


def status_of(pid):
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "State:\tZ"


def test_the_list_answers_without_torch():
    code = (
        "import sys, runpy; sys.modules['torch'] = sys.modules['numpy'] = None;"
        f"sys.argv = ['gpu_queue.py', '--list']; runpy.run_path({str(SCRIPT)!r}, "
        "run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for one in gpu_queue.entries():
        assert f"\n{one.name} " in f"\n{ended.stdout}"


def test_names_inputs_and_data_exist():
    found = gpu_queue.entries()
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert set(one.data) <= gpu_queue.DATA.keys()
        for pattern in one.inputs:
            assert list(ROOT.glob(pattern)), pattern
        for command in one.commands:
            assert command.minutes > 0
            assert command.tiny


@pytest.mark.slow
def test_every_command_runs_at_a_tiny_size():
    ended = subprocess.run(
        [sys.executable, SCRIPT, "--tiny"], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]

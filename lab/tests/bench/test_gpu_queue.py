"""The queue for a GPU: what it skips, how it stops, and that every command runs."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import gpu_blocks
import gpu_entries
import gpu_queue
from evidence_page import plans
from gpu_entries import DATA, LAB, Command, Data, Entry
from gpu_queue import Queue
from sgdf_lab.cli.main import parse
from sgdf_lab.data.dataset import fetch_command
from sgdf_lab.registry.datasets import DATASETS

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
    command = Command(("measure.py", place, seconds), minutes, "it.json", resumes=resumes)
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


def test_the_list_answers_without_torch():
    code = (
        "import sys, runpy; sys.modules['torch'] = sys.modules['numpy'] = None;"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r}); sys.argv = ['gpu_queue.py', '--list'];"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for one in gpu_entries.entries():
        assert f"\n{one.name} " in f"\n{ended.stdout}"


# --- what makes files for later commands ----------------------------------------------------------


def pair(root):
    """A command that makes a file in the work folder, and one that needs it."""
    (root / "make.py").write_text(
        "import pathlib; made = pathlib.Path('runs/gpu-queue/net/last.pt')\n"
        "made.parent.mkdir(parents=True, exist_ok=True); made.write_text('weights')\n"
    )
    (root / "use.py").write_text(
        "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text(\n"
        "    pathlib.Path(sys.argv[1].partition('=')[2]).read_text())\n"
    )
    maker = Command(("make.py",), 0.0, makes="net/last.pt", resumes=True)
    user = Command(("use.py", f"net={gpu_queue.WORKING}/*/last.pt", gpu_queue.OUT), 0.0, "it.json")
    return Entry("it", "", (maker, user), ("text",), ("plan.toml",))


def test_a_file_that_is_needed_and_missing_is_made_again(root):
    """As on the machine of the next contributor, who has the records but not the checkpoints."""
    which = pair(root)
    assert states(taken(which)) == ["done", "done"]
    assert (root / "results" / "it.json").read_text() == "weights"
    (root / gpu_queue.WORK / "net" / "last.pt").unlink()
    assert gpu_queue.standing(which) == [True, True]  # nobody needs it any more
    (root / "results" / "it.json").unlink()
    assert gpu_queue.standing(which) == [False, False]
    assert states(taken(which)) == ["done", "done"]
    assert (root / "results" / "it.json").read_text() == "weights"


def test_without_the_file_nothing_after_it_is_tried(root):
    which = pair(root)
    (root / "make.py").write_text("raise SystemExit(1)")
    assert states(taken(which)) == ["failed", "left"]


# --- killed and started again ---------------------------------------------------------------------

QUEUE = """
import sys, time
from pathlib import Path
import gpu_queue as q
from gpu_entries import Command, Entry
q.ROOT, q.MARGIN = Path(sys.argv[1]), 0.0
words, record, resumes = sys.argv[4:], sys.argv[2], sys.argv[3] == "resumes"
entry = Entry("it", "", (Command(tuple(words), 0.0, record, resumes=resumes),))
queue = q.Queue(time.monotonic() + 900)
with queue.stopped_by_signals():
    queue.take(entry, {})
print([line.state for line in queue.lines])
"""


def started(root, record, how, *words):
    """A queue with one command, in a process of its own."""
    path = os.pathsep.join([str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", QUEUE, str(root), record, how, *words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_with_its_command(queue):
    """End the queue by SIGKILL, and wait until its command has gone after it."""
    children = Path(f"/proc/{queue.pid}/task/{queue.pid}/children").read_text().split()
    queue.send_signal(signal.SIGKILL)
    queue.wait()
    for pid in children:
        while Path(f"/proc/{pid}").exists() and "State:\tZ" not in status_of(pid):
            time.sleep(0.02)


def status_of(pid):
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "State:\tZ"


SLOW = """
import pathlib, sys, time
out = pathlib.Path(sys.argv[1])
out.mkdir()
for number in range(20):
    (out / f"{number}.json").write_text("half")
    time.sleep(0.03)
    (out / f"{number}.json").write_text("whole")
"""


def test_killed_at_any_instant_it_continues_and_no_record_is_half_written(root):
    (root / "slow.py").write_text(SLOW)
    out = root / gpu_queue.WORK / "records" / "it" / "many"
    target = root / "results" / "many"
    for begun in (0, 1, 8, 19):  # files of the record when the queue is killed
        queue = started(root, "many", "", "slow.py", gpu_queue.OUT)
        while queue.poll() is None and len(list(out.glob("*.json"))) < begun:
            time.sleep(0.005)
        kill_with_its_command(queue)
        whole = [file.read_text() for file in target.glob("*.json")]
        assert whole in ([], ["whole"] * 20)
    queue = started(root, "many", "", "slow.py", gpu_queue.OUT)
    assert "done" in queue.communicate()[0]
    assert [file.read_text() for file in target.glob("*.json")] == ["whole"] * 20


@pytest.mark.slow
def test_a_sweep_that_is_killed_continues_at_its_record(root):
    """Killed when two of four runs are in the record; these are not made again."""
    plan = root / "grid.toml"
    plan.write_text(
        'title = "x"\ntask = "digits"\nepochs = 1\nseeds = [0, 1, 2, 3]\n'
        '[[cells]]\noptimizer = "sgd"\n'
    )
    record = root / "results" / "grid" / "runs.jsonl"
    words = (*LAB, "sweep", str(plan), "--record", f"{gpu_queue.RECORDS}/grid/runs.jsonl",
             "--out", f"{gpu_queue.WORKING}/grid", "--device", "cpu", "--jobs", "1")  # fmt: skip
    queue = started(root, "grid/runs.jsonl", "resumes", *words)
    while queue.poll() is None and len(lines_of(record)) < 2:
        time.sleep(0.01)
    kill_with_its_command(queue)
    first = runs_in(record)
    assert len(first) >= 2
    queue = started(root, "grid/runs.jsonl", "resumes", *words)
    assert "done" in queue.communicate()[0]
    ended = runs_in(record)
    assert len(ended) == 4
    assert all(ended[name] == run for name, run in first.items())


def runs_in(record):
    return {run["name"]: run for run in map(json.loads, lines_of(record))}


def lines_of(file):
    return file.read_text().splitlines() if file.exists() else []


def test_ctrl_c_stops_the_command_and_the_table_still_comes(root):
    (root / "slow.py").write_text(SLOW.replace("0.03", "30"))
    out = root / gpu_queue.WORK / "records" / "it" / "many"
    queue = started(root, "many", "", "slow.py", gpu_queue.OUT)
    while not list(out.glob("*")):
        time.sleep(0.02)
    queue.send_signal(signal.SIGINT)
    assert queue.communicate()[0].endswith("['left']\n")
    assert not (root / "results").exists()


def test_commands_run_the_code_of_this_repository(root, monkeypatch):
    """An installed copy knows no commit."""
    (root / "measure.py").write_text(
        "import pathlib, os, sys; pathlib.Path(sys.argv[1]).write_text(os.environ['PYTHONPATH'])"
    )
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    taken(entry())
    found = (root / "results" / "it.json").read_text().split(os.pathsep)
    assert found == [str(root / "src"), str(root / "lab" / "src"), "/elsewhere"]


# --- data -----------------------------------------------------------------------------------------


def test_data_that_is_fetched_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("SGDF_DATA", str(tmp_path))
    for name in DATA.keys() & DATASETS.keys():
        if DATA[name].how.startswith("sgdf data fetch"):
            assert DATA[name].how == fetch_command(name, tmp_path)
    from sgdf_lab import data

    text = DATA["encyclopedia"].path
    text.parent.mkdir()
    text.write_text("not it")
    assert data.find("encyclopedia").home() == text
    assert "not the published text" in gpu_queue.complaint("encyclopedia")


def test_damaged_data_is_a_complaint_before_the_clock_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("SGDF_DATA", str(tmp_path))
    chosen = [one for one in gpu_entries.entries() if one.name == "correction"]
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz.part").write_bytes(b"half")
    sums, complaints = gpu_queue.checked(chosen)
    assert not sums
    assert complaints.keys() == {"cifar10", "cifar100"}
    assert "sgdf data fetch cifar100" in complaints["cifar100"]


def test_a_folder_needs_its_parts(monkeypatch, tmp_path):
    monkeypatch.setenv("SGDF_DATA", str(tmp_path))
    data = Data("photos", "take some", ("train", "val"))
    (tmp_path / "photos" / "train").mkdir(parents=True)
    assert not data.is_here
    (tmp_path / "photos" / "val").mkdir()
    assert data.is_here


# --- the entries ----------------------------------------------------------------------------------


def plans_of(command):
    return [ROOT / word for word in command.words if word.endswith(".toml")]


def commands():
    return [(one, command) for one in gpu_entries.entries() for command in one.commands]


def test_names_inputs_and_data_exist():
    found = gpu_entries.entries()
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert set(one.data) <= DATA.keys()
        for pattern in one.inputs:
            assert list(ROOT.glob(pattern)), pattern
        for command in one.commands:
            assert command.minutes > 0
            assert command.tiny
            assert not re.search(r"[{}]", command.shown)
            for plan in plans_of(command):
                assert plan.relative_to(ROOT).as_posix() in one.inputs


def test_every_command_at_its_full_size_is_one_of_the_command_line():
    """`--tiny` runs them with other words at the end."""
    for _, command in commands():
        if command.words[:2] == LAB:
            parse(gpu_queue.with_places(command.words[2:], "out", "work", "results"))


def test_tiny_sweeps_have_the_contestants_of_the_full_ones(monkeypatch):
    from sgdf_lab import paper
    from sgdf_lab.cli.sweep import sweep_from

    presets = dict(paper.PRESETS)
    monkeypatch.setattr(paper, "PRESETS", paper.PRESETS.copy())
    monkeypatch.setattr("sgdf_lab.data.synthetic.TRAIN", 0)
    monkeypatch.setattr("sgdf_lab.data.synthetic.TEST", 0)
    gpu_queue.shrink_the_paper()
    for name, preset in presets.items():
        full, tiny = ({(c.task, c.optimizer, c.label) for c in p.cells}
                      for p in (preset, paper.PRESETS[name]))  # fmt: skip
        assert full == tiny
    for _, command in commands():
        if command.words[2:3] == ("sweep",):
            full, tiny = (
                {config.optimizer for config in sweep_from(parse(words[2:])).configs}
                for words in (command.words, (*command.words, *command.tiny))
            )
            assert full == tiny


def test_the_slices_are_all_gpu_tests_of_make():
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    folders = re.search(r"-m gpu (.*)", make)[1].split()
    sliced = {command.words[-1] for command in gpu_entries.gpu_tests()}
    assert all(any(file.startswith(f"{folder}/") for folder in folders) for file in sliced)
    marked = {
        file.relative_to(ROOT).as_posix()
        for folder in folders
        for file in (ROOT / folder).rglob("test_*.py")
        if names_the_mark(file)
    }
    assert sliced == marked


def names_the_mark(file):
    """Whether `gpu` is an attribute somewhere in it, as of pytest's marks, or a shared mark."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return any(isinstance(node, ast.Attribute) and node.attr == "gpu" for node in nodes) or any(
        isinstance(node, ast.Name) and node.id == "NEEDS_GPU" for node in nodes
    )


def test_every_record_has_its_place_in_the_documentation():
    """So that regenerating the blocks takes new numbers over."""
    compared = {plan.stem for plan in plans()}
    sources = "".join(
        (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
        for name in ("pages.py", "gpu_blocks.py")
    )
    for one, command in commands():
        name = command.record.removesuffix("/runs.jsonl")
        if name.startswith("evidence/"):
            assert name.removeprefix("evidence/") in compared
        elif name:
            names = {name, name.replace("cuda", "{device}"), name.replace("resnet18", "{network}")}
            assert name in gpu_blocks.GRIDS or any(n in sources for n in names), one.name


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder of results."""
    monkeypatch.setattr(gpu_blocks, "RESULTS", tmp_path)
    gpu_blocks.runs_of.cache_clear()
    yield tmp_path
    gpu_blocks.runs_of.cache_clear()


def test_blocks_say_what_is_missing(results):
    assert "VGG11 on CIFAR-100" in gpu_blocks.grid_tables()
    assert gpu_blocks.fast_recipe("sgdf") == gpu_blocks.MISSING
    for words in (gpu_blocks.hessian_table(), gpu_blocks.matrix_steps_table("cpu")):
        assert gpu_blocks.MISSING in words


def test_blocks_have_the_numbers_of_new_records(results):
    old = [json.loads(line) for line in lines_of(ROOT / "results" / "cifar10-fast" / "runs.jsonl")]
    for name in ("cifar100-vgg11", "cifar10-fast-again"):
        (results / name).mkdir()
        lines = "".join(json.dumps(run) + "\n" for run in old)
        (results / name / "runs.jsonl").write_text(lines)
    for path in (ROOT / "results" / "resnet18-hessian").glob("*-sgdf-*.json"):
        place = results / "resnet18-cifar100-hessian"
        place.mkdir()
        (place / path.name.replace("cifar10-", "cifar100-")).write_text(path.read_text())
    tables = gpu_blocks.grid_tables()
    assert "**VGG11 on CIFAR-100**" in tables
    assert "93.94 ± 0.10 (10)" in tables
    assert gpu_blocks.fast_recipe("sgd-nesterov") == "93.94 ± 0.10 (10)"
    assert "| `sgdf` | 69.6 | 592.5" in gpu_blocks.hessian_table()


def test_times_of_matrix_steps_are_means_with_the_longest(results):
    row = {"optimizer": "FilterMuon", "path": "matrix", "state_bytes": 8.0, "ms": 1.0}
    row |= {"timings": {"ms": [1.0, 1.0, 4.0]}, "times_muon": 0.5}
    row |= {"extra_memory_bytes_in_all": 2e6}
    record = {"commit": "0123456789", "date": "2026-11-19T00:00", "bars": [{"sentence": "a bar"}],
              "machine": {"device": "AMD", "cpus": 2},
              "lists": {"gpt-11m-matrices": {"rows": [row, row | {"ms": None}]}}}  # fmt: skip
    (results / "bench-step-matrices-cpu.json").write_text(json.dumps(record))
    words = gpu_blocks.matrix_steps_table("cpu")
    assert words.count("GPT, 11 M") == 1
    for part in (
        "| GPT, 11 M | FilterMuon matrix | 8.0 | 2 | 4 | 0.50 | 2 |",
        "AMD, 2 cores, 2026-11-19, commit 0123456.",
        "ResNet-18; GPT, 124 M: not measured yet.",
        "- a bar",
    ):
        assert part in words


def test_the_table_of_entries_says_what_was_measured(results, root):
    first = entry()
    assert gpu_blocks.measured_words(first) == "no"
    taken(first)
    (results / "gpu").mkdir()
    (results / "gpu" / "it.json").write_text((root / "results" / "gpu" / "it.json").read_text())
    words = gpu_blocks.measured_words(first)
    assert re.search(r", \d{4}-\d\d-\d\d, [0-9a-f]{7}$", words)
    two = replace(first, commands=first.commands * 2)
    assert gpu_blocks.measured_words(two).startswith("1 of 2, ")


@pytest.mark.slow
def test_every_command_runs_at_a_tiny_size():
    ended = subprocess.run(
        [sys.executable, SCRIPT, "--tiny"], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]

"""Faults around a run: the disk, the folder, the process, a second process, and workers."""

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from runs.commands import EVERY_EPOCH, fault, folder_in
from sweeps import test_sweeps
from torture.bench import BUSY, Bench, Left, check_same, state_of, wait_until
from torture.kills import without
from torture.operations import short
from torture.outcome import (
    CRASH,
    DIFFERENT,
    HANG,
    SAME,
    SENTENCE,
    TRACEBACK,
    Bug,
    Case,
    Outcome,
    check_success,
    ended_well,
)
from torture.tasks import TASKS, SmallTask, command

KIND = "faults"
DIGITS = TASKS["digits"]
SHORT = short(DIGITS)

#: Disk operations at which the disk fails, with the count of each.
MOMENTS = (
    ("mkdir out", 0), ("open lock", 0), ("write lock", 0), ("write config.json.new", 0),
    ("replace config.json", 0), ("fsync metrics.jsonl.new", 0), ("write env.json.new", 0),
    ("open metrics.jsonl", 1), ("write metrics.jsonl", 1), ("write times.jsonl", 2),
    ("open last.pt.new", 1), ("write last.pt.new", 0), ("write last.pt.new", 200),
    ("fsync last.pt.new", 2), ("replace previous.pt", 0), ("replace last.pt", 1),
    ("open folder", 6), ("write result.json.new", 0), ("replace result.json", 0),
    ("unlink previous.pt", 0),
)  # fmt: skip
DISKS = {
    "full disk": "full",
    "disk quota": "EDQUOT",
    "read-only disk": "EROFS",
    "no permission": "EACCES",
    "broken disk": "EIO",
    "removed folder": "remove",
}


def cases() -> Iterator[Case]:
    for row, do in DISKS.items():
        for op, nth in MOMENTS:
            yield Case(KIND, row, f"{row} at {op} {nth}", partial(failing_disk, op, nth, do))
    for size in (0, 100, 4000, 20_000):
        yield Case(
            KIND, "limit on file size", f"files of at most {size} bytes", partial(small_files, size)
        )
    for task in TASKS.values():
        for seed in range(3):
            name = f"stopped and continued {task.name} {seed}"
            yield Case(KIND, "stopped process", name, partial(stopped, task, name))
            name = f"two writers {task.name} {seed}"
            yield Case(KIND, "two writers", name, partial(two_writers, task, name))
        for seed in range(2):
            name = f"killed rank {task.name} {seed}"
            yield Case(KIND, "killed rank of two", name, partial(killed_rank, task, name))
    for seed in range(2):
        yield Case(KIND, "killed sweep worker", f"killed sweep worker {seed}", killed_worker)
    if importlib.util.find_spec("ray"):
        yield Case(KIND, "killed Ray node", "killed Ray node", killed_node)


# --- the disk -------------------------------------------------------------------------------------


def failing_disk(op: str, nth: int, do: str, bench: Bench, folder: Path) -> Outcome:
    """From one operation on, the disk fails; once it works again, the command resumes."""
    expected = bench.undisturbed(SHORT, folder)
    out = folder / "out"
    ended = bench.run(SHORT, out, **fault(op, do, nth))
    word = ended_well(ended)  # it may have needed nothing more of the disk
    if do == "full" and list(out.rglob("*.new")):
        raise Bug(DIFFERENT, f"left on a full disk: {list(out.rglob('*.new'))}")
    bench.ends_the_same(SHORT, out, expected)
    return Outcome(word, detail=ended.output[-300:])


def small_files(size: int, bench: Bench, folder: Path) -> Outcome:
    """A limit of the system that a write runs into."""
    expected = bench.undisturbed(SHORT, folder)
    out = folder / "out"
    log = folder / "log"
    os.mkfifo(log)  # the limit holds for files, also for that with the output
    reader = subprocess.Popen(["cat", str(log)], stdout=subprocess.PIPE, text=True)
    started = bench.start(SHORT, out, log=log, file_size=size)
    output, _ = reader.communicate(timeout=BUSY)
    bench.server.ask(wait=started.pid)
    if "Traceback" in output or "(--debug" in output or "sgdf: " not in output:
        raise Bug(TRACEBACK, output[-2000:])
    bench.ends_the_same(SHORT, out, expected)
    return Outcome(SENTENCE, detail=output[-300:])


# --- the process ----------------------------------------------------------------------------------


def stopped(task: SmallTask, name: str, bench: Bench, folder: Path) -> Outcome:
    """SIGSTOP and SIGCONT at random instants, as a scheduler of a cluster may send them."""
    argv = short(task)
    expected = bench.undisturbed(argv, folder, images=task.images)
    chance, out, stops = random.Random(name), folder / "out", 0
    started = bench.start(argv, out, images=task.images)
    for _ in range(5):
        time.sleep(chance.uniform(0, 0.3) * expected.seconds)
        if state_of(started.pid)[0] == "Z":
            break
        started.send(signal.SIGSTOP)
        wait_until(lambda: state_of(started.pid)[0] in "TZ", "a stop")
        time.sleep(chance.uniform(0, 0.05))
        started.send(signal.SIGCONT)
        stops += 1
    check_success(bench.wait(started))
    check_same(folder_in(out), expected)
    return Outcome(SAME, stops)


def two_writers(task: SmallTask, name: str, bench: Bench, folder: Path) -> Outcome:
    """Two processes start the same run at nearly the same time: one of them writes."""
    argv = short(task)
    expected = bench.undisturbed(argv, folder, images=task.images)
    out, chance = folder / "out", random.Random(name)
    first = bench.start(argv, out, images=task.images)
    time.sleep(chance.uniform(0, 0.5) * expected.seconds)
    second = bench.start(argv, out, log=folder / "second.log", images=task.images)
    ends = [bench.wait(first), bench.wait(second)]
    if all(ended.code for ended in ends):
        raise Bug(DIFFERENT, f"neither wrote: {ends}")
    words = set(map(ended_well, ends))
    check_same(folder_in(out), expected)
    return Outcome(SENTENCE if SENTENCE in words else SAME)


def killed_rank(task: SmallTask, name: str, bench: Bench, folder: Path) -> Outcome:
    """One of two processes of a run is killed: the other one ends, and both resume."""
    argv = command(task, "sgdf", *(("--shard",) if task.shards else ()))
    request = {"images": task.images, "saving_share": EVERY_EPOCH}

    def peace() -> Left:
        start = time.monotonic()
        for ended in bench.end_team(bench.start_team(argv, folder / "two", 2, **request)):
            check_success(ended)
        return Left(folder_in(folder / "two"), time.monotonic() - start)

    expected = bench.peace.of((*argv, "two"), peace)
    chance, out, kills = random.Random(name), folder / "out", 0
    for _ in range(2):
        team = bench.start_team(argv, out, 2, **request)
        writer = f"process {team[0].pid} "  # both have met once it is in the lock
        wait_until(lambda w=writer: any(w in p.read_text() for p in out.glob("*/lock")), writer)  # type: ignore[misc]
        victim = team.pop(chance.randrange(2))
        hit = bench.kill_after(victim, chance.uniform(0, 0.6) * expected.seconds).code == -9
        kills += hit
        other = bench.wait(team[0])  # raises a Bug if it waits forever
        if other.code < 0:
            raise Bug(CRASH, f"the other process: {other}")
        if not hit:
            shutil.rmtree(out, ignore_errors=True)
    for ended in bench.end_team(bench.start_team(argv, out, 2, **request)):
        check_success(ended)
    check_same(folder_in(out), expected)
    alone = bench.run(without(argv, "--shard"), out, images=task.images)
    check_success(alone)  # a finished run is finished for one process too
    return Outcome(SAME, kills)


# --- sweeps ---------------------------------------------------------------------------------------


def killed_worker(bench: Bench, folder: Path) -> Outcome:
    """A worker of a sweep is killed within a run: another one resumes it."""
    out = folder / "out"
    sweep = started_script(test_sweeps.__file__, out)
    try:
        pid, _ = test_sweeps.wait_for_a_busy_child(out, sweep.pid)
        os.kill(pid, signal.SIGKILL)
        output = ended_script(sweep)
    finally:
        sweep.kill()
    for config in test_sweeps.CELLS:
        argv = ("train", "digits", "--optimizer", config.optimizer, "--seed", str(config.seed),
                "--epochs", str(config.epochs), "--data", "synthetic", "--device", "cpu",
                "--set", "lr=0.05", "--set", "batch=128")  # fmt: skip
        check_same(out / config.name, bench.undisturbed(argv, folder / config.name))
    if "Traceback" in output:
        raise Bug(TRACEBACK, output[-2000:])
    return Outcome(SAME)


def killed_node(bench: Bench, folder: Path) -> Outcome:
    """A node of a Ray cluster is killed: its runs resume on the other."""
    from sweeps import test_cluster  # needs Ray

    script = started_script(test_cluster.__file__, folder, test_cluster.LOOPBACK)
    try:
        output = ended_script(script)
    finally:
        script.kill()
    undisturbed, results = json.loads(output.splitlines()[-1])
    for config, result, expected in zip(test_cluster.CELLS, results[:-1], undisturbed, strict=True):
        ours, theirs = (
            (folder / place / config.name / "metrics.jsonl").read_bytes()
            for place in ("shared", "undisturbed")
        )
        same = ours == theirs and result["status"] == expected["status"] == "finished"
        if not same:
            raise Bug(DIFFERENT, f"{config.name}: {result}, undisturbed {expected}")
    return Outcome(SAME)


def started_script(
    script: str, out: Path, more: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, script, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **threads, **paths, **(more or {})},
    )


def ended_script(process: "subprocess.Popen[str]") -> str:
    try:
        output, errors = process.communicate(timeout=BUSY)
    except subprocess.TimeoutExpired:
        raise Bug(HANG, f"no end after {BUSY} s") from None
    if process.returncode:
        word: Any = CRASH if process.returncode < 0 else TRACEBACK
        raise Bug(word, f"exit code {process.returncode}: {errors[-2000:]}")
    return output

"""A run on disk: whatever happens to the process, the same command ends with the same numbers."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("rich")

from lab import run_driver

from sgdf.lab import config as configs
from sgdf.lab import runs

TRAIN = ("train", "digits", "--data", "synthetic", "--device", "cpu")
SHORT = (*TRAIN, "--set", "batch=512", "--epochs", "3")
LONG = (*TRAIN, "--set", "batch=128", "--epochs", "40")
EVERY_EPOCH = 1e9  # the share of the time that saving may take: no save is ever put off


# --- starting the command line ------------------------------------------------------------------


@dataclass
class Ended:
    code: int  # minus the signal that killed it
    said: str


class Started:
    """A process that runs `sgdf`."""

    def __init__(self, server: "Server", pid: int, log: Path) -> None:
        self.server, self.pid, self.log = server, pid, log

    def wait(self) -> Ended:
        return Ended(self.server.ask(wait=self.pid), self.log.read_text())

    def send(self, *signals: signal.Signals) -> None:
        for s in signals:
            os.kill(self.pid, s)


class Server:
    """The process behind run_driver.py."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, run_driver.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SGDF_COMMIT": "none"},
        )

    def ask(self, **request: Any) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def start(self, argv: tuple[str, ...], out: Path, **request: Any) -> Started:
        log = request.pop("log", out.with_name(out.name + ".log"))
        return Started(self, self.ask(argv=argv, out=str(out), log=str(log), **request), log)

    def run(self, argv: tuple[str, ...], out: Path, **request: Any) -> Ended:
        return self.start(argv, out, **request).wait()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.communicate(timeout=30)


@dataclass
class Undisturbed:
    """What a run that nothing happens to leaves."""

    metrics: bytes
    result: dict[str, Any]
    seconds: float


@pytest.fixture(scope="module")
def undisturbed(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[tuple[str, ...]], Undisturbed]:
    found: dict[tuple[str, ...], Undisturbed] = {}

    def of(argv: tuple[str, ...]) -> Undisturbed:
        if argv not in found:
            out = tmp_path_factory.mktemp("undisturbed")
            start = time.monotonic()
            ended = server.run(argv, out)
            seconds = time.monotonic() - start
            assert ended.code == 0, ended.said
            metrics = (folder_in(out) / "metrics.jsonl").read_bytes()
            found[argv] = Undisturbed(metrics, result_in(out), seconds)
        return found[argv]

    return of


@pytest.fixture
def ends_the_same(server: Server, undisturbed: Any, tmp_path: Path) -> Callable[..., Ended]:
    """Start the command once more: it comes to the end that it would have come to undisturbed."""

    def check(argv: tuple[str, ...] = SHORT, out: Path = tmp_path / "out") -> Ended:
        ended = server.run(argv, out)
        assert ended.code == 0, ended.said
        expected = undisturbed(argv)
        assert (folder_in(out) / "metrics.jsonl").read_bytes() == expected.metrics
        assert without_times(result_in(out)) == without_times(expected.result)
        return ended

    return check


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def folder_in(out: Path) -> Path:
    [folder] = out.iterdir()
    return folder


def result_in(out: Path) -> dict[str, Any]:
    return dict(json.loads((folder_in(out) / "result.json").read_text()))


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "seconds"}


def lines_in(out: Path) -> int:
    """Epochs that metrics.jsonl tells of."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return (folder_in(out) / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def epochs_saved(out: Path, name: str = "last.pt") -> int:
    """What a checkpoint holds; fails where it is not whole."""
    return int(runs.read_checkpoint(folder_in(out) / name, torch.device("cpu"))["epoch"])


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited a minute"
        time.sleep(0.002)


def grief(op: str, do: str, nth: int = 0) -> dict[str, Any]:
    return {"grief": {"op": op, "nth": nth, "do": do}, "saving_share": EVERY_EPOCH}


# --- kill -9 ------------------------------------------------------------------------------------


def test_ten_kills_at_random_instants(server, undisturbed, ends_the_same, out):
    expected = undisturbed(LONG)
    chance = random.Random(2411)
    story: list[tuple[float | str, int, int]] = []
    while len(story) < 10:
        before = lines_in(out)
        if len(story) in (3, 7):  # these two in the middle of a checkpoint
            delay: float | str = "in a checkpoint"
            started = server.start(
                LONG, out, **grief("write last.pt.new", "slow", chance.randrange(100))
            )
            wait_until(lambda: (folder_in(out) / "last.pt.new").exists())
        else:
            delay = chance.uniform(0, 0.6 * expected.seconds)
            started = server.start(LONG, out)
            time.sleep(delay)
        started.send(signal.SIGKILL)
        if started.wait().code == 0:  # it was faster
            ends_the_same(LONG)
            shutil.rmtree(out)
            continue
        story.append((delay, before, lines_in(out)))
        if delay == "in a checkpoint":
            assert (folder_in(out) / "last.pt.new").exists()
    print("delay, epochs told of before and after:", story)
    assert sum(after > before for _, before, after in story) >= 3, "of the kills, in training"
    ends_the_same(LONG)


def operations(server: Server, out: Path, trace: Path) -> list[str]:
    """The disk operations of a short run, in order."""
    ended = server.run(
        SHORT, out, grief={"trace": str(trace)}, saving_share=EVERY_EPOCH
    )
    assert ended.code == 0, ended.said
    return trace.read_text().splitlines()


def test_killed_at_any_disk_operation(server, ends_the_same, tmp_path):
    """Before each, or half way through a write; a checkpoint is hundreds of writes: five of them.

    An fsync, or opening a folder for one, changes nothing that a killed process leaves behind.
    """
    seen: Counter[str] = Counter()
    moments = []
    for op in operations(server, tmp_path / "whole", tmp_path / "trace"):
        moments.append((op, seen[op]))
        seen[op] += 1
    folder = folder_in(tmp_path / "whole").name
    moments = [(op, n) for op, n in moments if op != f"open {folder}" and "fsync" not in op]
    ...

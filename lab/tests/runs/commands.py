"""Start `sgdf` in other processes, which can be made to fail at one of their disk operations.

And what tests of sweeps share.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs import run_driver
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.config import Config

#: What a server imports whose processes train together.
TEAMS = ("torch.distributed.fsdp", "torch.distributed.tensor", "sgdf_lab.training.distributed")
EVERY_EPOCH = 1e9  # as the share of the time that saving may take: every epoch is saved


@dataclass
class Ended:
    """A process that has ended."""

    code: int  # minus the number of the signal that killed it
    output: str


class Started:
    """A process that runs `sgdf`."""

    def __init__(self, server: "Server", pid: int, log: Path) -> None:
        self.server, self.pid, self.log = server, pid, log

    def wait(self) -> Ended:
        code = self.server.ask(wait=self.pid)
        # A process that is killed at once has no log yet.
        return Ended(code, self.log.read_text() if self.log.exists() else "")

    def send(self, *signals: signal.Signals) -> None:
        for s in signals:
            os.kill(self.pid, s)


class Two:
    """Two processes of one run."""

    def __init__(self, started: list[Started]) -> None:
        self.started = started

    def wait(self) -> Ended:
        """Wait for both; the code is that of one that failed, the output that of both."""
        ended = [each.wait() for each in self.started]
        failed = [each.code for each in ended if each.code]
        return Ended(failed[0] if failed else 0, "".join(each.output for each in ended))


class Server:
    """A process that runs run_driver.py, or a driver made from it."""

    def __init__(self, driver: str = run_driver.__file__, modules: Sequence[str] = ()) -> None:
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        self.process = subprocess.Popen(
            [sys.executable, driver, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**plain, "OMP_NUM_THREADS": "1", "SGDF_COMMIT": "none"},
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, **request: Any) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def start(self, argv: tuple[str, ...], out: Path, **request: Any) -> Started:
        log = request.pop("log", out.with_name(out.name + ".log"))
        request |= {"argv": argv, "out": str(out), "log": str(log)}
        return Started(self, self.ask(**request), log)

    def run(self, argv: tuple[str, ...], out: Path, **request: Any) -> Ended:
        return self.start(argv, out, **request).wait()

    def start_two(
        self, argv: tuple[str, ...], out: Path, env: dict[str, str] | None = None, **request: Any
    ) -> "Two":
        """Two processes of one run, as torchrun would start them; a fault is the first one's."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        started = []
        for rank in ("0", "1"):
            team = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": port,
                    "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
            own = {k: v for k, v in request.items() if k != "fault" or rank == "0"}
            log = out.with_name(f"{out.name}-{rank}.log")
            started.append(self.start(argv, out, env={**(env or {}), **team}, log=log, **own))
        return Two(started)

    def run_two(self, argv: tuple[str, ...], out: Path, **request: Any) -> Ended:
        return self.start_two(argv, out, **request).wait()


class Clock:
    """Instead of the module `time`: a test sets it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def folder_in(out: Path) -> Path:
    """The folder of the only run in `out`."""
    [folder] = (path for path in out.iterdir() if (path / "config.json").exists())
    return folder


def fault(op: str, do: str, nth: int = 0) -> dict[str, Any]:
    """A request to fail at the nth such operation, in a run that saves every epoch."""
    return {"fault": {"op": op, "nth": nth, "do": do}, "saving_share": EVERY_EPOCH}


# --- sweeps ---------------------------------------------------------------------------------------

#: Two trials of two optimizers, and two seeds of the better ones: eight runs of an epoch.
PLAN = """
task = "digits"
epochs = 1
trials = 2
seeds = [1, 2]
[set]
validation = 200
batch = 256
[grid]
optimizer = ["sgdf", "adamw"]
"""


def long_runs(epochs: int, *optimizers: str) -> list[Config]:
    """Two seeds of each, much longer than the epochs in which one of them is killed."""
    overrides = {"lr": 0.05, "batch": 128}
    return [
        configs.make(
            "digits", optimizer=name, seed=seed, epochs=epochs, data="synthetic",
            overrides=overrides,
        )
        for name in optimizers
        for seed in (0, 1)
    ]  # fmt: skip


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found

"""Starts runs, waits for them, notices hangs, and compares what they leave with a run in peace."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from runs.commands import Ended, Server, Started, folder_in
from sgdf_lab.runs import run_folder
from torture import driver
from torture.outcome import DIFFERENT, HANG, Bug, check_success

CPU = torch.device("cpu")
IDLE = 300.0  # seconds asleep, also on a busy machine, after which a process hangs
BUSY = 900.0  # seconds of work after which it never ends


class Bench:
    """One worker of the matrix, with a server that forks its processes."""

    def __init__(self, peace: "Peace") -> None:
        paths = [str(Path(driver.__file__).parents[1]), *sys.path]
        with environment(PYTHONPATH=os.pathsep.join(p for p in paths if p)):
            self.server = Server(driver.__file__)
        self.peace = peace

    def close(self) -> None:
        self.server.process.communicate()

    def start(self, argv: Sequence[str], out: Path, **request: Any) -> Started:
        return self.server.start(tuple(argv), out, **request)

    def wait(self, started: Started) -> Ended:
        wait_for_end(started.pid)
        return started.wait()

    def run(self, argv: Sequence[str], out: Path, **request: Any) -> Ended:
        return self.wait(self.start(argv, out, **request))

    def kill_after(self, started: Started, seconds: float) -> Ended:
        """Kill it after so long, unless it has ended before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and state_of(started.pid)[0] != "Z":
            time.sleep(0.001)
        started.send(signal.SIGKILL)
        return started.wait()

    # --- several processes ------------------------------------------------------------------------

    def start_team(
        self, argv: Sequence[str], out: Path, size: int, **request: Any
    ) -> list[Started]:
        """`size` processes of one run; a fault is the first one's."""
        if size == 1:
            return [self.start([w for w in argv if w != "--shard"], out, **request)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        team = []
        for rank in range(size):
            env = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            own = dict(request)
            if rank:
                own.pop("fault", None)
            log = out.with_name(f"{out.name}-{rank}.log")
            team.append(self.start(argv, out, env=env, log=log, **own))
        return team

    def end_team(self, team: list[Started]) -> list[Ended]:
        """Wait for the first to end; the others have to end by themselves."""
        return [self.wait(started) for started in team]

    # --- comparing --------------------------------------------------------------------------------

    def undisturbed(self, argv: Sequence[str], folder: Path, **request: Any) -> "Left":
        """What the command leaves if nothing happens; trained once."""

        def train() -> Left:
            out = folder / "undisturbed"
            folder.mkdir(exist_ok=True)
            start = time.monotonic()
            ended = self.run(argv, out, **request)
            check_success(ended)
            return Left(folder_in(out), time.monotonic() - start)

        return self.peace.of((*argv, json.dumps(request, sort_keys=True)), train)

    def ends_the_same(
        self, argv: Sequence[str], out: Path, expected: "Left", **request: Any
    ) -> None:
        """Repeat the command: a `Bug` unless it ends with the same bytes."""
        ended = self.run(argv, out, **request)
        check_success(ended)
        check_same(folder_in(out), expected)


class Peace:
    """Undisturbed runs, shared by all workers; each is trained by the first that asks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.locks: dict[Any, threading.Lock] = {}
        self.results: dict[Any, Left] = {}

    def of(self, key: Any, make: Callable[[], "Left"]) -> "Left":
        with self.lock:
            mine = self.locks.setdefault(key, threading.Lock())
        with mine:
            if key not in self.results:
                self.results[key] = make()
            return self.results[key]


class Left:
    """What a finished run leaves: metrics, result, weights and the optimizer's state."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self.seconds = seconds
        for name in ("metrics.jsonl", "result.json", "last.pt"):
            if (folder / name).is_symlink() or not (folder / name).is_file():
                raise Bug(DIFFERENT, f"{name} of {folder} is not a file")
        self.metrics = (folder / "metrics.jsonl").read_bytes()
        result = json.loads((folder / "result.json").read_text())
        self.result = {name: value for name, value in result.items() if name != "seconds"}
        checkpoint = run_folder.read_checkpoint(folder / "last.pt", CPU)
        self.checkpoint = {name: part for name, part in checkpoint.items() if name != "times"}
        pictures = sorted((folder / "pictures").glob("*"))
        self.pictures = {path.name: path.read_bytes() for path in pictures}


def check_same(folder: Path, expected: Left) -> None:
    """Raise a `Bug` where a finished run differs from an undisturbed one."""
    left = Left(folder)
    for name in ("metrics", "result", "pictures"):
        if getattr(left, name) != getattr(expected, name):
            raise Bug(DIFFERENT, f"{name} of {folder} differ from those of an undisturbed run")
    if bits(left.checkpoint) != bits(expected.checkpoint):
        raise Bug(DIFFERENT, f"last.pt of {folder} differs from that of an undisturbed run")


def bits(value: Any) -> Any:
    """Anything in a checkpoint as something that is equal only if all bits are."""
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    if isinstance(value, torch.Tensor):
        raw = value.detach().reshape(-1).contiguous().view(torch.uint8)
        return str(value.dtype), tuple(value.shape), raw.numpy().tobytes()
    return value.hex() if isinstance(value, float) else value


# --- processes ------------------------------------------------------------------------------------


def state_of(pid: int) -> tuple[str, int]:
    """State (R running, S sleeping, D disk, T stopped, Z ended) and clock ticks of work."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return fields[0], int(fields[11]) + int(fields[12])


def wait_for_end(pid: int) -> None:
    """Until the process has ended; a process that hangs is killed, which is a `Bug`."""
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    worked, since = -1, time.monotonic()
    while True:
        state, ticks = state_of(pid)
        if state == "Z":
            return
        if ticks != worked or state in "RD":
            worked, since = ticks, time.monotonic()
        idle = time.monotonic() - since
        if idle > IDLE or ticks > BUSY * ticks_per_second:
            os.kill(pid, signal.SIGKILL)
            raise Bug(HANG, f"no end: idle for {idle:.0f} s, worked {ticks / ticks_per_second} s")
        time.sleep(0.002)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + IDLE
    while not condition():
        if time.monotonic() > end:
            raise Bug(HANG, f"waited {IDLE:.0f} s for {what}")
        time.sleep(0.002)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

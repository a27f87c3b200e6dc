"""The runs of a sweep in worker processes on this machine."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.results import failure
from sgdf_lab.runs.session import RunContext
from sgdf_lab.sweeps.worker import MAX_DEATHS, Notify, Results, as_request, record_failure


def run_in_processes(
    configs: Iterable[Config], context: RunContext, jobs: int, notify: Notify
) -> Results:
    """Train `jobs` runs at a time, each in a process of its own."""
    waiting = deque(configs)
    deaths: Counter[str] = Counter()
    with WorkerPool(context, max(1, available_cores() // jobs), notify) as pool:
        while waiting or pool.busy:
            while waiting and len(pool.busy) < jobs:
                pool.submit(waiting.popleft())
            for config, worker, answer in pool.answers():
                if answer is None:
                    deaths[config.name] += 1
                    if deaths[config.name] < MAX_DEATHS:
                        waiting.appendleft(config)
                        continue
                    result = failure(f"its process {worker.cause_of_death()}")
                    answer = {"result": result, "messages": []}
                    record_failure(config, context, result)
                for text in answer["messages"]:
                    notify(text)
                yield config, answer["result"]


def available_cores() -> int:
    """The cores that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerProcess:
    """A process that runs `sgdf_lab.sweeps.worker`, seen from the sweep."""

    def __init__(self, threads: int) -> None:
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sgdf_lab.sweeps.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env={
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),  # finds a user's own optimizer too
            },
            process_group=0,  # Ctrl-C reaches it from the sweep, once, not from the terminal
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests: Any = self.process.stdin
        self.answers: Any = self.process.stdout

    def submit(self, config: Config, context: RunContext) -> None:
        with contextlib.suppress(OSError):  # if it is dead, `answer` will tell
            self.requests.write(as_request(config, context) + "\n")
            self.requests.flush()

    def answer(self) -> dict[str, Any] | None:
        """Read an answer; None if the process died."""
        line = self.answers.readline()
        return dict(json.loads(line)) if line.endswith("\n") else None

    def cause_of_death(self) -> str:
        """How the last of MAX_DEATHS processes ended, in words."""
        code = self.process.wait()
        if code < 0:
            return f"was killed {MAX_DEATHS} times (signal {-code})"
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"exited {MAX_DEATHS} times (exit code {code}{last and ': ' + last})"

    def close(self) -> None:
        """Send no more requests, and wait until the process has exited."""
        for file in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                file.close()
        self.process.wait()
        self.stderr.close()


class WorkerPool:
    """Worker processes, busy or idle. On an exception inside the block, busy ones save and stop."""

    def __init__(self, context: RunContext, threads: int, notify: Notify) -> None:
        self.context, self.threads, self.notify = context, threads, notify
        self.idle: list[WorkerProcess] = []
        self.busy: dict[WorkerProcess, Config] = {}
        self.readable = selectors.DefaultSelector()

    def submit(self, config: Config) -> None:
        worker = self.idle.pop() if self.idle else WorkerProcess(self.threads)
        self.busy[worker] = config
        self.readable.register(worker.answers, selectors.EVENT_READ, worker)
        worker.submit(config, self.context)

    def answers(self) -> Iterator[tuple[Config, WorkerProcess, dict[str, Any] | None]]:
        """Wait for the next answers; None from a worker that died."""
        for key, _ in self.readable.select():
            worker: WorkerProcess = key.data
            answer = worker.answer()
            self.readable.unregister(worker.answers)
            config = self.busy.pop(worker)
            if answer is not None:
                self.idle.append(worker)
            yield config, worker, answer
            if answer is None:
                worker.close()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        workers = [*self.idle, *self.busy]
        try:
            if kind is not None and self.busy:
                self.notify("stopping: once more stops without saving")
                self.send_signal(signal.SIGINT)
                for worker in self.busy:
                    worker.process.wait()
        except KeyboardInterrupt:
            self.send_signal(signal.SIGKILL)
        finally:
            for worker in workers:
                worker.close()
            self.readable.close()

    def send_signal(self, number: signal.Signals) -> None:
        for worker in self.busy:
            worker.process.send_signal(number)  # does nothing once the process was waited for

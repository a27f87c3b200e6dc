"""The runs of a sweep in worker processes: the pool, and the worker, which trains one run after
another.

A worker is not made by multiprocessing, which would run a user's script again in each of them: only
its connection is. Runs of a killed worker or a killed sweep resume from their checkpoints.
"""

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.results import failure, failure_from
from sgdf_lab.runs.session import RunContext, train
from sgdf_lab.support.files import write_atomically
from sgdf_lab.sweeps.progress import Heartbeat

MAX_DEATHS = 3  # a run whose process died so often has failed
LOCK_TIMEOUT = 60.0  # seconds to wait for a run that a dying process still holds

Notify = Callable[[str], None]
Results = Generator[tuple[Config, dict[str, Any]], None, None]  # runs as they end


# --- training, in whatever process --------------------------------------------------------------


def attempt(configs: Sequence[Config], context: RunContext, notify: Notify) -> list[dict[str, Any]]:
    """Train the runs side by side; a failure is a result, recorded in the run's folder."""
    results: dict[str, dict[str, Any]] = {}
    left = list(configs)
    deadline = time.monotonic() + LOCK_TIMEOUT
    for pause in itertools.chain((0.1, 0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0)):
        results |= zip((c.name for c in left), results_of(left, context, notify), strict=True)
        left = [config for config in left if is_held(results[config.name])]
        if not left or time.monotonic() + pause > deadline:
            break
        time.sleep(pause)
    for config in configs:
        record_failure(config, context, results[config.name])
    return [results[config.name] for config in configs]


def results_of(
    configs: Sequence[Config], context: RunContext, notify: Notify
) -> list[dict[str, Any]]:
    try:
        return train(configs, context, Heartbeat(notify, context.out))
    except (Exception, SystemExit) as error:  # a single run's is raised
        return [failure_from(error)]


def is_held(result: dict[str, Any]) -> bool:
    """Another process holds the lock and may be about to exit."""
    return bool(result.get("held"))


def record_failure(config: Config, context: RunContext, result: dict[str, Any]) -> None:
    """Write failure.json into the run's folder, or remove it once the run has succeeded."""
    path = context.out / config.name / "failure.json"
    with contextlib.suppress(OSError):  # the disk may be full, which may be the failure itself
        if result["status"] != "failed":
            path.unlink(missing_ok=True)
        elif path.parent.exists() and not is_held(result):
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_atomically(path, json.dumps({"error": result["error"], "when": when}) + "\n")


def answer_to(config: Config, context: RunContext) -> dict[str, Any]:
    """Train a run; the answer is its result, and messages for the user."""
    messages: list[str] = []
    (result,) = attempt([config], context, messages.append)
    return {"result": result, "messages": messages}


# --- the pool, in the process of the sweep --------------------------------------------------------


def run_in_processes(
    configs: Iterable[Config], context: RunContext, jobs: int, threads: int, notify: Notify
) -> Results:
    """Train `jobs` runs at a time, each in a process of its own with `threads` threads."""
    waiting = deque(configs)
    deaths: Counter[str] = Counter()
    with WorkerPool(context, threads, notify) as pool:
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


class WorkerProcess:
    """A process that runs this module, seen from the sweep."""

    def __init__(self, threads: int) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the process
        self.connection, other = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sgdf_lab.sweeps.worker", str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            env={
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),  # finds a user's own optimizer too
                "PYTHONIOENCODING": "utf-8:backslashreplace",  # which may print any text
            },
            process_group=0,  # Ctrl-C reaches it from the sweep, once, not from the terminal
        )
        other.close()

    def submit(self, config: Config, context: RunContext) -> None:
        with contextlib.suppress(OSError):  # if it is dead, `answer` will tell
            self.connection.send((config, context))

    def answer(self) -> dict[str, Any] | None:
        """Read an answer; None if the process died."""
        try:
            return dict(self.connection.recv())
        except (EOFError, OSError):
            return None

    def cause_of_death(self) -> str:
        """How the last of MAX_DEATHS processes ended, in words."""
        code = self.process.wait()
        if code < 0:
            return f"was killed {MAX_DEATHS} times (signal {-code})"
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"exited {MAX_DEATHS} times (exit code {code}{last and ': ' + last})"

    def close(self) -> None:
        """Send no more requests, and wait until the process has exited."""
        self.connection.close()
        self.process.wait()
        self.output.close()


class WorkerPool:
    """Worker processes, busy or idle. On an exception inside the block, busy ones save and stop."""

    def __init__(self, context: RunContext, threads: int, notify: Notify) -> None:
        self.context, self.threads, self.notify = context, threads, notify
        self.idle: list[WorkerProcess] = []
        self.busy: dict[WorkerProcess, Config] = {}

    def submit(self, config: Config) -> None:
        worker = self.idle.pop() if self.idle else WorkerProcess(self.threads)
        self.busy[worker] = config
        worker.submit(config, self.context)

    def answers(self) -> Iterator[tuple[Config, WorkerProcess, dict[str, Any] | None]]:
        """Wait for the next answers; None from a worker that died."""
        by_connection: dict[Any, WorkerProcess] = {w.connection: w for w in self.busy}
        for connection in wait(list(by_connection)):
            worker = by_connection[connection]
            answer = worker.answer()
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

    def send_signal(self, number: signal.Signals) -> None:
        for worker in self.busy:
            worker.process.send_signal(number)  # does nothing once the process was waited for


# --- the worker --------------------------------------------------------------------------------


def requests(connection: Connection) -> Iterator[tuple[Config, RunContext]]:
    """What the sweep asks for. A thread reads it, to notice the end of the sweep during a run."""
    received: queue.Queue[tuple[Config, RunContext] | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                received.put(connection.recv())
        unanswered = received.unfinished_tasks
        received.put(None)
        if unanswered:  # the sweep is gone: save and stop, as after Ctrl-C
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=read, daemon=True).start()
    while request := received.get():
        yield request
        received.task_done()


def main() -> int:
    connection = Connection(int(sys.argv[1]))
    try:
        for config, context in requests(connection):
            connection.send(answer_to(config, context))
    except (KeyboardInterrupt, ConnectionError):
        return 130
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a plain exit would wait for the thread that reads

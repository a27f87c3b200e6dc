"""The runs of a sweep in worker processes: the pool, and the worker, which trains one run after
another.

A request and its answer are one line of JSON each, on standard input and output. Runs of a killed
worker or a killed sweep resume from their checkpoints.
"""

import contextlib
import io
import itertools
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

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


# --- requests and answers -----------------------------------------------------------------------


def as_request(config: Config, context: RunContext) -> str:
    return json.dumps({"config": config.as_json(), "context": vars(context)}, default=str)


def from_request(line: str) -> tuple[Config, RunContext]:
    request = json.loads(line)
    context = request["context"]
    context["out"], context["device"] = Path(context["out"]), torch.device(context["device"])
    context["data_dir"] = context["data_dir"] and Path(context["data_dir"])
    return Config.from_json(request["config"], "the request"), RunContext(**context)


def answer_to(config: Config, context: RunContext) -> dict[str, Any]:
    """Train a run; the answer is its result, and messages for the user."""
    messages: list[str] = []
    (result,) = attempt([config], context, messages.append)
    return {"result": result, "messages": messages}


# --- the pool, in the process of the sweep --------------------------------------------------------


def run_in_processes(
    configs: Iterable[Config], context: RunContext, jobs: int, threads: int, notify: Notify
) -> Results:
    """Train `jobs` runs at a time, each in a process of its own with so many threads."""
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


# --- the worker --------------------------------------------------------------------------------


class RequestReader:
    """Reads requests in a thread, so that the end of the sweep is noticed during a run."""

    def __init__(self, lines: TextIO) -> None:
        self.queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.unanswered = 0
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: TextIO) -> None:
        for line in lines:
            self.unanswered += 1
            self.queue.put(line)
        self.queue.put(None)
        if self.unanswered:  # the sweep is gone: save and stop, as after Ctrl-C
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def __iter__(self) -> Iterator[tuple[Config, RunContext]]:
        while line := self.queue.get():
            yield from_request(line)
            self.unanswered -= 1


def reserve_stdout() -> TextIO:
    """Standard output, for answers only: other prints go to standard error from here on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a user's optimizer prints may be any text
        sys.stdout.reconfigure(errors="backslashreplace")
    return answers


def main() -> int:
    answers = reserve_stdout()
    try:
        for config, context in RequestReader(sys.stdin):
            answers.write(json.dumps(answer_to(config, context)) + "\n")
            answers.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a plain exit would wait for the thread that reads standard input

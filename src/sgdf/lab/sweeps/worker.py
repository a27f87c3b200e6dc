"""Worker processes: each brings one run after another to its end. Both ends of the talk are here.

A request and its answer are a line of JSON each, on the worker's standard input and output.
What a killed worker or a killed sweep leaves behind are runs that go on from their checkpoints.
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
from rich.console import Console

from sgdf.lab.runs.config import Config
from sgdf.lab.runs.disk import read_end
from sgdf.lab.runs.session import Place, failure, title, train
from sgdf.support.files import write_atomically

DEATHS = 3  # of the process under a run, before the run counts as failed
PATIENCE = 60.0  # seconds to wait for a run that a dying process still holds

Say = Callable[[str], None]
Ends = Generator[tuple[Config, dict[str, Any]], None, None]  # runs with their results


# --- one run, or a few together, wherever they run ----------------------------------------------


def attempt(wanted: Sequence[Config], place: Place, say: Say) -> list[dict[str, Any]]:
    """Bring the runs to their end; what goes wrong is a result too, noted in the run's folder."""
    results: dict[str, dict[str, Any]] = {}
    left = list(wanted)
    deadline = time.monotonic() + PATIENCE
    for pause in itertools.chain((0.1, 0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0)):
        results |= dict(zip((c.name for c in left), trained(left, place, say), strict=True))
        left = [config for config in left if is_held(results[config.name])]
        if not left or time.monotonic() + pause > deadline:
            break
        time.sleep(pause)
    for config in wanted:
        note(config, place, results[config.name])
    return [results[config.name] for config in wanted]


def trained(wanted: Sequence[Config], place: Place, say: Say) -> list[dict[str, Any]]:
    try:
        return train(wanted, place, Listener(say, wanted))
    except Exception as error:  # of a single run; those of several come back as results
        return [failure(error)]


class Listener(Console):
    """Passes on what `train` says, but for the progress of runs, which a sweep shows itself."""

    def __init__(self, say: Say, wanted: Sequence[Config]) -> None:
        super().__init__(file=io.StringIO(), force_terminal=False)
        self.say, self.titles = say, tuple(map(title, wanted))

    def print(self, *objects: Any, **_: Any) -> None:
        text = " ".join(map(str, objects))
        if not text.startswith(self.titles):
            self.say(text)


def failed(error: object) -> dict[str, Any]:
    return {"status": "failed", "error": str(error)}


def is_held(result: dict[str, Any]) -> bool:
    """By another process, which may be about to die."""
    return bool(result.get("held"))


def note(config: Config, place: Place, result: dict[str, Any]) -> None:
    """Keep the reason of a failure beside the run, as long as the run has not succeeded."""
    path = place.out / config.name / "failure.json"
    with contextlib.suppress(OSError):  # a full disk may be the reason itself
        if result["status"] != "failed":
            path.unlink(missing_ok=True)
        elif path.parent.exists() and not is_held(result):
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_atomically(path, json.dumps({"error": result["error"], "when": when}) + "\n")


def known_end(config: Config, place: Place) -> dict[str, Any] | None:
    """How a run ended in an earlier sweep, well or badly, if it did."""
    end = read_end(place.out / config.name)
    if end is not None and end["status"] != "failed":
        note(config, place, end)
    return end


# --- the sweep's end ----------------------------------------------------------------------------


def run_here(todo: Sequence[Config], place: Place, together: int, say: Say) -> Ends:
    """The runs as they end, in this process, so many at a time."""
    for start in range(0, len(todo), together):
        group = todo[start : start + together]
        yield from zip(group, attempt(group, place, say), strict=True)


def run_local(todo: Iterable[Config], place: Place, jobs: int, say: Say) -> Ends:
    """The runs as they end, `jobs` at a time, each in a process that others do not depend on."""
    waiting = deque(todo)
    deaths: Counter[str] = Counter()
    with Crew(place, max(1, cores() // jobs), say) as crew:
        while waiting or crew.busy:
            while waiting and len(crew.busy) < jobs:
                crew.give(waiting.popleft())
            for config, worker, answer in crew.answers():
                if answer is None:
                    deaths[config.name] += 1
                    if deaths[config.name] < DEATHS:
                        waiting.appendleft(config)
                        continue
                    answer = {"result": failed(f"its process {worker.fate(DEATHS)}"), "said": []}
                    note(config, place, answer["result"])
                for text in answer["said"]:
                    say(text)
                yield config, answer["result"]


def cores() -> int:
    """Those that this process may use, where the system says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Worker:
    """A worker process, seen from the sweep."""

    def __init__(self, threads: int) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sgdf.lab.sweeps.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env={
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),  # a user's optimizer is found there too
            },
            process_group=0,  # so that Ctrl-C comes from the sweep, once, and not from the terminal
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests: Any = self.process.stdin
        self.answers: Any = self.process.stdout

    def give(self, config: Config, place: Place) -> None:
        with contextlib.suppress(OSError):  # it is dead, which shows when it does not answer
            self.requests.write(as_request(config, place) + "\n")
            self.requests.flush()

    def answer(self) -> dict[str, Any] | None:
        """Once there is one to read; none from a process that died."""
        line = self.answers.readline()
        return dict(json.loads(line)) if line.endswith("\n") else None

    def fate(self, times: int) -> str:
        """How it ended, the last of so many times."""
        code = self.process.wait()
        if code < 0:
            return f"was killed {times} times (signal {-code})"
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"ended {times} times (exit code {code}{last and ': ' + last})"

    def close(self) -> None:
        """No more requests: it ends once it has done what it was given."""
        for file in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                file.close()
        self.process.wait()
        self.complaints.close()


class Crew:
    """Worker processes: some busy with a run, some idle. Leaving in haste, they stop and save."""

    def __init__(self, place: Place, threads: int, say: Say) -> None:
        self.place, self.threads, self.say = place, threads, say
        self.idle: list[Worker] = []
        self.busy: dict[Worker, Config] = {}
        self.readable = selectors.DefaultSelector()

    def give(self, config: Config) -> None:
        worker = self.idle.pop() if self.idle else Worker(self.threads)
        self.busy[worker] = config
        self.readable.register(worker.answers, selectors.EVENT_READ, worker)
        worker.give(config, self.place)

    def answers(self) -> Iterator[tuple[Config, Worker, dict[str, Any] | None]]:
        """Wait for the next ones; none from a worker that died."""
        for key, _ in self.readable.select():
            worker: Worker = key.data
            answer = worker.answer()
            self.readable.unregister(worker.answers)
            config = self.busy.pop(worker)
            if answer is not None:
                self.idle.append(worker)
            yield config, worker, answer
            if answer is None:
                worker.close()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        workers = [*self.idle, *self.busy]
        try:
            if kind is not None and self.busy:
                self.say("stopping: once more stops without saving")
                self.signal(signal.SIGINT)
                for worker in self.busy:
                    worker.process.wait()
        except KeyboardInterrupt:
            self.signal(signal.SIGKILL)
        finally:
            for worker in workers:
                worker.close()
            self.readable.close()

    def signal(self, number: signal.Signals) -> None:
        for worker in self.busy:
            worker.process.send_signal(number)  # to none that has been waited for


# --- the worker's end ---------------------------------------------------------------------------


def as_request(config: Config, place: Place) -> str:
    return json.dumps({"config": config.as_json(), "place": vars(place)}, default=str)


def from_request(line: str) -> tuple[Config, Place]:
    request = json.loads(line)
    place = request["place"]
    place["out"], place["device"] = Path(place["out"]), torch.device(place["device"])
    place["data_dir"] = place["data_dir"] and Path(place["data_dir"])
    return Config.from_json(request["config"], "the request"), Place(**place)


class Requests:
    """Read in a thread, so that the end of the sweep is noticed in the middle of a run."""

    def __init__(self, lines: TextIO) -> None:
        self.queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.unanswered = 0
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()

    def _listen(self, lines: TextIO) -> None:
        for line in lines:
            self.unanswered += 1
            self.queue.put(line)
        self.queue.put(None)
        if self.unanswered:  # nobody waits for the answer: stop as Ctrl-C does, and save
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def __iter__(self) -> Iterator[tuple[Config, Place]]:
        while line := self.queue.get():
            yield from_request(line)
            self.unanswered -= 1


def private_output() -> TextIO:
    """Standard output for the answers alone: whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main() -> int:
    answers = private_output()
    try:
        for config, place in Requests(sys.stdin):
            said: list[str] = []
            (result,) = attempt([config], place, said.append)
            answers.write(json.dumps({"result": result, "said": said}) + "\n")
            answers.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the thread that reads may hold standard input, which a plain exit waits for

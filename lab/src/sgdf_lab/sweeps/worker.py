"""A worker process: trains one run after another.

A request and its answer are one line of JSON each, on standard input and output. Runs of a killed
worker or a killed sweep resume from their checkpoints.
"""

import contextlib
import io
import itertools
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.results import failure_from
from sgdf_lab.runs.session import RunContext, train
from sgdf_lab.support.files import write_atomically
from sgdf_lab.sweeps.heartbeat import Heartbeat

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
    except (Exception, SystemExit) as error:  # `train` raises for a single run only
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


# --- the process --------------------------------------------------------------------------------


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

"""The runs of a sweep on a Ray cluster. Runs of a node that dies resume on another one.

All nodes share the folder of the runs, with checkpoints, results and locks: a run needs nothing
else to move. Ray decides only where it runs.
"""

import contextlib
import dataclasses
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.results import failure
from sgdf_lab.runs.session import RunContext
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps.worker import (
    MAX_DEATHS,
    Notify,
    Results,
    answer_to,
    record_failure,
)

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # type: ignore[import-not-found,unused-ignore]

VISIBLE_TIMEOUT = 15.0  # seconds until a shared folder shows a new file on another node
SAVE_TIMEOUT = 60.0  # seconds that runs have to save when the sweep is stopped


def run_on_cluster(
    configs: list[Config],
    context: RunContext,
    notify: Notify,
    *,
    address: str | None = None,
    cpus: float = 1,
    gpus: float | None = None,
) -> Results:
    """Train on the cluster. Ray starts the runs in their order, as resources become free."""
    gpus = gpus if gpus is not None else float(context.device.type == "cuda")
    out, data_dir = context.out.resolve(), context.data_dir and context.data_dir.resolve()
    context = dataclasses.replace(context, out=out, data_dir=data_dir)
    task = ray.remote(on_node).options(num_cpus=cpus, num_gpus=gpus, max_retries=0)
    with connected(address), token_in(out) as token:
        warn_without_resources(cpus, gpus, notify)
        running = {task.remote(config, context, *token): config for config in configs}
        deaths: Counter[str] = Counter()
        try:
            while running:
                for ref in ray.wait(list(running), timeout=10)[0]:
                    config = running.pop(ref)
                    answer = answer_of(ref, deaths, config)
                    if answer is None:
                        running[task.remote(config, context, *token)] = config
                        continue
                    record_failure(config, context, answer["result"])
                    for text in answer["messages"]:
                        notify(text)
                    yield config, answer["result"]
        finally:
            stop(list(running), notify)


def answer_of(ref: Any, deaths: Counter[str], config: Config) -> dict[str, Any] | None:
    """The answer of a task; None if it died with its process or node and has to run again."""
    try:
        return dict(ray.get(ref))
    except ray.exceptions.NodeDiedError:
        return None  # not the run's fault, however often it happens
    except ray.exceptions.RayTaskError as error:  # raised by `on_node`, outside of the run
        if isinstance(error.cause, UserError):
            raise error.cause from None
        return failed_answer(f"{type(error.cause).__name__}: {error.cause}")
    except ray.exceptions.RayError as error:
        deaths[config.name] += 1
        if deaths[config.name] < MAX_DEATHS:
            return None
        reason = str(error).partition("\n")[0]
        return failed_answer(f"its process died {MAX_DEATHS} times ({reason})")


def failed_answer(error: str) -> dict[str, Any]:
    return {"result": failure(error), "messages": []}


def on_node(config: Config, context: RunContext, token: str, secret: str) -> dict[str, Any]:
    """The Ray task: train a run on whichever node this is."""
    if not is_visible(Path(token), secret):
        raise UserError(
            f"{Path(token).parent} is not the same folder on {socket.gethostname()}: --out has to "
            "be a folder that all nodes share, under the same path"
        )
    return answer_to(config, context)


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a running cluster; this starts none."""
    if ray.is_initialized():
        yield
        return
    if address not in (None, "auto"):
        check_reachable(str(address))
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address in (None, "auto"):
            raise UserError(
                "no Ray cluster runs on this machine: start one with `ray start --head`, or give "
                "--address HOST:PORT"
            ) from error
        raise UserError(f"no Ray cluster answers at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """Fail at once where Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--address is auto or HOST:PORT, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster answers at {address}: {error}") from None


@contextlib.contextmanager
def token_in(out: Path) -> Iterator[tuple[str, str]]:
    """A temporary file in the folder, by which a node recognizes it."""
    secret = secrets.token_hex(8)
    path = out / f".token-{secret}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(secret)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    try:
        yield str(path), secret
    finally:
        path.unlink(missing_ok=True)


def is_visible(path: Path, secret: str) -> bool:
    deadline = time.monotonic() + VISIBLE_TIMEOUT
    while path.parent.exists():
        with contextlib.suppress(OSError):
            if path.read_text() == secret:
                return True
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return False


def warn_without_resources(cpus: float, gpus: float, notify: Notify) -> None:
    """Ray waits silently for a node that may never join."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(n.get("CPU", 0) >= cpus and n.get("GPU", 0) >= min(gpus, 1) for n in nodes):
        notify(f"no node has {cpus:g} CPUs and {gpus:g} GPUs yet: the runs wait until one joins")


def stop(running: list[Any], notify: Notify) -> None:
    """Let the runs save. One that takes too long resumes from its last checkpoint."""
    if not running:
        return
    notify("stopping: once more stops without saving")
    for ref in running:
        ray.cancel(ref, force=False)  # raises KeyboardInterrupt in the task
    with contextlib.suppress(KeyboardInterrupt):
        ray.wait(running, num_returns=len(running), timeout=SAVE_TIMEOUT)

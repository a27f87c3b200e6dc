"""The runs of a sweep on a Ray cluster. When a node dies, its runs go on elsewhere.

All nodes share the folder of the runs: checkpoints, results and locks in it are all that a run
needs to move. Ray decides where it runs, and is told nothing else.
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

from sgdf.lab.runs.config import Config
from sgdf.lab.runs.session import Place
from sgdf.lab.sweeps.worker import (
    DEATHS,
    Ends,
    Say,
    as_request,
    attempt,
    failed,
    from_request,
    note,
)
from sgdf.support.errors import UserError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # type: ignore[import-not-found,unused-ignore]

SIGHT = 15.0  # seconds that a shared folder may take to show a new file on another node
SAVING = 60.0  # seconds that runs have to save when the sweep is stopped


def run(
    todo: list[Config],
    place: Place,
    say: Say,
    *,
    address: str | None = None,
    cpus: float = 1,
    gpus: float | None = None,
) -> Ends:
    """The runs as they end. Ray starts them in their order, as many at a time as it has room."""
    gpus = gpus if gpus is not None else float(place.device.type == "cuda")
    out, data_dir = place.out.resolve(), place.data_dir and place.data_dir.resolve()
    place = dataclasses.replace(place, out=out, data_dir=data_dir)
    task = ray.remote(on_node).options(num_cpus=cpus, num_gpus=gpus, max_retries=0)
    with connected(address), token_in(out) as token:
        say_if_there_is_no_room(cpus, gpus, say)
        running = {task.remote(as_request(config, place), *token): config for config in todo}
        deaths: Counter[str] = Counter()
        try:
            while running:
                for ref in ray.wait(list(running), timeout=10)[0]:
                    config = running.pop(ref)
                    answer = answer_of(ref, deaths, config)
                    if answer is None:
                        running[task.remote(as_request(config, place), *token)] = config
                        continue
                    note(config, place, answer["result"])
                    for text in answer["said"]:
                        say(text)
                    yield config, answer["result"]
        finally:
            stop(list(running), say)


def answer_of(ref: Any, deaths: Counter[str], config: Config) -> dict[str, Any] | None:
    """What a task says, or nothing when it died with its process or node and shall run again."""
    try:
        return dict(ray.get(ref))
    except ray.exceptions.NodeDiedError:
        return None  # that is not the run's fault, however often it happens
    except ray.exceptions.RayTaskError as error:  # not of the run, but of the node
        if isinstance(error.cause, UserError):
            raise error.cause from None
        return {"result": failed(f"{type(error.cause).__name__}: {error.cause}"), "said": []}
    except ray.exceptions.RayError as error:
        deaths[config.name] += 1
        if deaths[config.name] < DEATHS:
            return None
        reason = str(error).partition("\n")[0]
        return {"result": failed(f"its process died {DEATHS} times ({reason})"), "said": []}


def on_node(request: str, token: str, secret: str) -> dict[str, Any]:
    """A task: bring a run to its end, on whatever node this is."""
    if not is_seen(Path(token), secret):
        raise UserError(
            f"{Path(token).parent} is not the same folder on {socket.gethostname()}: --out is a "
            "folder that all nodes share, under the same name"
        )
    config, place = from_request(request)
    said: list[str] = []
    (result,) = attempt([config], place, said.append)
    return {"result": result, "said": said}


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """To a cluster that is there: this starts none."""
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
                "no Ray cluster runs here: start one with `ray start --head`, or give --address "
                "HOST:PORT"
            ) from error
        raise UserError(f"no Ray cluster answers at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--address is auto or HOST:PORT, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster answers at {address}: {error}") from None


@contextlib.contextmanager
def token_in(out: Path) -> Iterator[tuple[str, str]]:
    """A file by which a node knows the folder."""
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


def is_seen(path: Path, secret: str) -> bool:
    deadline = time.monotonic() + SIGHT
    while path.parent.exists():
        with contextlib.suppress(OSError):
            if path.read_text() == secret:
                return True
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return False


def say_if_there_is_no_room(cpus: float, gpus: float, say: Say) -> None:
    """Ray waits in silence for a node that may never come."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(n.get("CPU", 0) >= cpus and n.get("GPU", 0) >= min(gpus, 1) for n in nodes):
        say(f"no node has {cpus:g} CPUs and {gpus:g} GPUs yet: the runs wait until one joins")


def stop(running: list[Any], say: Say) -> None:
    """Let what still runs save; what does not make it in time goes on from where it saved last."""
    if not running:
        return
    say("stopping: once more stops without saving")
    for ref in running:
        ray.cancel(ref, force=False)  # as Ctrl-C in the task
    with contextlib.suppress(KeyboardInterrupt):
        ray.wait(running, num_returns=len(running), timeout=SAVING)

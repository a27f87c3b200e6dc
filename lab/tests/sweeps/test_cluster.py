"""A real Ray cluster of two nodes on this machine: one is killed, its runs resume on the other."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("ray")

import torch
from rich.console import Console

from runs.commands import children_of, long_runs
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.session import RunContext
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import execute
from sgdf_lab.sweeps.execute import Engine

CPU = torch.device("cpu")
# Ray takes 127.0.0.1 for an address that others cannot reach, unless it thinks it is elsewhere.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "OMP_NUM_THREADS": "1"}
PATIENCE = 900  # seconds: on a machine that is busy otherwise, a cluster takes minutes

CELLS = long_runs(80, "sgdf", "filter-muon-eigen")

pytestmark = pytest.mark.timeout(PATIENCE + 100)


# --- the other process, which is the cluster's driver -------------------------------------------


@contextlib.contextmanager
def two_nodes() -> Iterator[int]:
    """Start the cluster; yields the id of the second node's raylet process."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        second = cluster.add_node(**node)
        os.environ["TEST_RAY_ADDRESS"] = cluster.address
        yield second.all_processes["raylet"][0].process.pid
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill_when_busy(raylet: int, out: Path) -> None:
    """Kill the node once one of its workers is some epochs into a run."""
    while True:
        time.sleep(0.02)
        for lock in out.glob("*/lock"):
            words = lock.read_text().split()
            metrics = lock.parent / "metrics.jsonl"
            if len(words) > 1 and int(words[1]) in children_of(raylet) and metrics.exists():
                epochs = metrics.read_bytes().count(b"\n")
                if 3 <= epochs <= 60 and not (lock.parent / "result.json").exists():
                    for pid in (raylet, *children_of(raylet)):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    (out / "killed").write_text(lock.parent.name)
                    return


def drive(out: Path) -> None:
    """All of it in one process: a cluster takes seconds to start."""
    console = Console(file=sys.stderr)
    torch.set_num_threads(1)
    alone = RunContext(out / "undisturbed", CPU)
    undisturbed = execute.run_all(CELLS, alone, Engine(jobs=1), console=console)
    shared = out / "shared"
    with two_nodes() as raylet:
        address = os.environ["TEST_RAY_ADDRESS"]
        shared.mkdir()
        killer = threading.Thread(target=kill_when_busy, args=(raylet, shared), daemon=True)
        killer.start()
        context = RunContext(shared, CPU)
        bad = configs.make("digits", optimizer="torch.optim.LBFGS", epochs=1, data="synthetic",
                           overrides={"lr": 1.0})  # fmt: skip
        results = execute.run_all(
            [*CELLS, bad], context, Engine("ray", address=address), console=console
        )
    print(json.dumps([undisturbed, results]))


# --- the tests ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> tuple[Path, list, list]:
    out = tmp_path_factory.mktemp("cluster")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, __file__, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **LOOPBACK, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    undisturbed, results = json.loads(stdout.splitlines()[-1])
    return out, undisturbed, results


@pytest.mark.slow
def test_runs_of_a_killed_node_end_with_the_same_numbers(driven):
    out, undisturbed, results = driven
    killed = (out / "shared" / "killed").read_text()
    for config, result, expected in zip(CELLS, results[:-1], undisturbed, strict=True):
        assert result["status"] == "finished"
        assert result["final_test_accuracy"] == expected["final_test_accuracy"]
        folder, twin = (out / place / config.name for place in ("shared", "undisturbed"))
        metrics = (folder / "metrics.jsonl").read_bytes()
        assert metrics == (twin / "metrics.jsonl").read_bytes()
        assert len(metrics.splitlines()) == config.epochs
    environment = json.loads((out / "shared" / killed / "env.json").read_text())
    assert len(environment["earlier"]) == 1
    assert environment["from_epoch"] > 0


@pytest.mark.slow
def test_a_run_that_raises_fails_once(driven):
    out, _, results = driven
    assert results[-1]["status"] == "failed"
    assert "closure" in results[-1]["error"]
    assert list((out / "shared").glob("*LBFGS*/failure.json"))
    assert not list((out / "shared").glob(".token*"))


def test_a_folder_that_a_node_does_not_share(tmp_path):
    from sgdf_lab.sweeps import cluster

    with cluster.token_in(tmp_path / "out") as (path, secret):
        assert cluster.is_visible(Path(path), secret)
        token = str(tmp_path / "elsewhere" / Path(path).name)
        with pytest.raises(UserError, match="all nodes share"):
            cluster.on_node(CELLS[0], RunContext(tmp_path, CPU), token, secret)
    assert not list((tmp_path / "out").iterdir())


def test_no_cluster_there(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster answers at {address}"):
            execute.run_all(CELLS, RunContext(tmp_path, CPU), Engine("ray", address=address))
    with pytest.raises(UserError, match="HOST:PORT"):
        execute.run_all(CELLS, RunContext(tmp_path, CPU), Engine("ray", address="here"))


if __name__ == "__main__":
    drive(Path(sys.argv[1]))

"""Matrices divided among two processes (gloo, on the CPU) move as in one process."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from optim import matrix_worker as worker

DEADLINE = 900  # seconds for all cases together, on a busy machine
ROUNDING = {"rtol": 1e-7, "atol": 1e-9}
each_form = pytest.mark.parametrize("name", worker.FORMS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes left of all cases, after one process saved its part."""
    folder = tmp_path_factory.mktemp("matrices")
    for name in worker.FORMS:
        model = worker.Network()
        optimizer = worker.built(name, model)
        worker.train(model, optimizer, worker.batches()[: worker.SAVED_AFTER])
        worker.save(folder / f"one {name}", model, optimizer)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    ranks = []
    try:
        for rank in range(worker.WORLD_SIZE):
            with open(folder / f"{rank}.log", "w") as log:
                command = [sys.executable, worker.__file__, folder, str(rank)]
                ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        for process in ranks:
            process.wait(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        pass  # the cases that are missing fail, with the log
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return folder


def outcomes(folder, case):
    results = []
    for rank in range(worker.WORLD_SIZE):
        left = folder / f"{case}.{rank}.pt"
        if not left.exists():
            pytest.fail(
                f"rank {rank} did not finish {case}:\n{(folder / f'{rank}.log').read_text()}"
            )
        results.append(torch.load(left, weights_only=False))
    errors = [f"rank {i}: {r['error']}" for i, r in enumerate(results) if "error" in r]
    if errors:
        pytest.fail("\n".join(errors))
    return results


@each_form
def test_ddp_divides_the_work(folder, name):
    first, second = outcomes(folder, f"ddp-{name}")
    assert_close(first["params"], worker.single_process(name), **ROUNDING)
    assert_close(first["params"], second["params"], rtol=0, atol=0)
    if name in ("eigen", "soap"):  # each process keeps the bases of its own matrices
        assert first["bases"] + second["bases"] == 2
        assert min(first["bases"], second["bases"]) > 0


def test_averages_in_8_bits_are_resumed_to_the_byte(folder):
    """Their blocks are along rows, which FSDP2 does not divide."""
    first, second = outcomes(folder, f"fsdp-{worker.IN_8_BITS}")
    assert first["in 8 bits"] == second["in 8 bits"] == ["first.weight"]
    assert first["sharded"]
    assert_close(first["resumed"], first["params"], rtol=0, atol=0)
    assert_close(first["params"], second["params"], rtol=0, atol=0)
    first, second = outcomes(folder, f"ddp-{worker.IN_8_BITS}")
    assert_close(first["params"], second["params"], rtol=0, atol=0)


@each_form
def test_every_process_can_continue_what_the_first_one_saved(folder, name):
    first, second = outcomes(folder, f"ddp_from_the_first_process-{name}")
    assert_close(first, second, rtol=0, atol=0)
    if name.startswith("muon"):
        assert_close(first["params"], worker.single_process(name), **ROUNDING)
    assert all(p.isfinite().all() for p in first["params"].values())


@each_form
def test_fsdp_steps_each_matrix_on_its_owner(folder, name):
    first, second = outcomes(folder, f"fsdp-{name}")
    assert first["sharded"]
    assert_close(first["params"], worker.single_process(name), **ROUNDING)
    assert_close(first["params"], second["params"], rtol=0, atol=0)
    assert_close(first["resumed"], first["params"], rtol=0, atol=0)
    if name in ("eigen", "soap"):
        assert first["bases"] + second["bases"] == 2
        assert min(first["bases"], second["bases"]) > 0


@each_form
def test_a_full_state_dict_is_loaded(folder, name):
    first, second = outcomes(folder, f"fsdp_full-{name}")
    assert_close(first, second, rtol=0, atol=0)
    if name.startswith("muon"):
        assert_close(first["params"], worker.single_process(name), **ROUNDING)
    assert all(p.isfinite().all() for p in first["params"].values())


@each_form
def test_a_distributed_checkpoint_goes_from_one_process_to_two_and_back(folder, name):
    outcomes(folder, f"from_one_and_back-{name}")
    model = worker.Network()
    optimizer = worker.built(name, model)
    worker.load(folder / f"two {name}", model, optimizer)
    worker.train(model, optimizer, worker.batches()[worker.SAVED_AFTER + 2 :])
    assert_close(worker.parameters(model), worker.single_process(name), **ROUNDING)

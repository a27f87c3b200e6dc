"""Two processes (gloo, on the CPU) end where one process ends that sees all of the data."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from optim import distributed_worker as worker

BITWISE = {"rtol": 0, "atol": 0}
ROUNDING = {"rtol": 1e-5, "atol": 1e-7}
NOISE = {"rtol": 0.02, "atol": 0.03}  # of steps along 8-bit state

each_optimizer = pytest.mark.parametrize("name", worker.OPTIMIZERS)
each_form = pytest.mark.parametrize("name", worker.BUILDERS)
each_kernel = pytest.mark.parametrize("kernel", worker.KERNELS)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """All cases, run once; ask for one by its name to get what it left on each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(folder)

    def outcomes_of(case):
        results = []
        for rank in range(worker.WORLD_SIZE):
            left = folder / f"{case}.{rank}.pt"
            if not left.exists():
                log = (folder / f"{rank}.log").read_text()
                pytest.fail(f"rank {rank} did not finish {case}:\n{log}")
            results.append(torch.load(left, weights_only=False))
        errors = [f"rank {i}: {r['error']}" for i, r in enumerate(results) if "error" in r]
        if errors:
            pytest.fail("\n".join(errors))
        return results

    return outcomes_of


def run_ranks(folder):
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    ranks = []
    try:
        for rank in range(worker.WORLD_SIZE):
            with open(folder / f"{rank}.log", "w") as log:
                command = [sys.executable, worker.__file__, folder, str(rank)]
                ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        for process in ranks:
            process.wait()
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def assert_resumes(rank):
    """From every kind of checkpoint, with the same bits."""
    for kind in worker.CHECKPOINTS:
        resumed = rank[kind]
        assert_close(resumed["shards when loaded"], rank["shards when saved"], **BITWISE)
        assert resumed["layout when loaded"] == rank["layout"]
        assert_close(resumed["shards"], rank["shards"], **BITWISE)


@each_form
def test_ddp(outcomes, name):
    first, second = outcomes(f"ddp-{name}")
    alone = worker.single_process(name)
    assert_close(first, alone, **ROUNDING)
    assert_close(first, second, **BITWISE)


@each_optimizer
def test_zero_redundancy_optimizer(outcomes, name):
    first, second = outcomes(f"zero-{name}")
    alone = worker.single_process(name)
    assert_close(first["params"], alone["params"], **ROUNDING)
    assert_close(first["params"], second["params"], **BITWISE)
    # Each rank keeps the state of some parameters; consolidated on rank 0 it is that of all.
    assert 0 < first["parameters with state"] < len(alone["params"])
    assert_close(first["state"], alone["state"], **ROUNDING)
    for rank in (first, second):
        assert_close(rank["resumed params"], rank["params"], **BITWISE)


@each_kernel
@each_form
def test_fsdp(outcomes, name, kernel):
    ranks = outcomes(f"fsdp-{name}-{kernel}")
    alone = worker.single_process(name)
    for rank in ranks:
        assert_close({key: rank[key] for key in alone}, alone, **ROUNDING)
        assert_sharded_like_parameters(rank["layout"])
        assert_resumes(rank)
    local_shapes = [rank["layout"]["2.weight"]["param"][1] for rank in ranks]
    assert local_shapes == [(1, 7), (0, 7)], "one rank was to have an empty shard"


@each_form
def test_fsdp_resumes_from_shards_on_disk(outcomes, name):
    for rank in outcomes(f"fsdp-on-disk-{name}"):
        assert_close(rank, worker.single_process(name), **ROUNDING)


@each_kernel
@pytest.mark.parametrize("name", worker.LOW_PRECISION)
def test_fsdp_bfloat16(outcomes, name, kernel):
    alone = worker.single_process(name, torch.bfloat16)
    for rank in outcomes(f"fsdp-bfloat16-{name}-{kernel}"):
        assert_close(rank["params"], alone["params"], rtol=2**-7, atol=0)
        assert_sharded_like_parameters(rank["layout"])
        moments = [t for of_p in rank["state"].values() for k, t in of_p.items() if k != "step"]
        assert {moment.dtype for moment in moments} == {torch.float32}
        # More digits than bfloat16 has, so that rounding in a checkpoint would show.
        assert all((moment != moment.bfloat16()).any() for moment in moments)
        assert_resumes(rank)


@pytest.mark.parametrize("kernel", ["loop", "fused"])
@pytest.mark.parametrize("name", worker.EIGHT_BIT)
def test_fsdp_8_bit_state(outcomes, name, kernel):
    """Blocks do not cross rows, so no shard cuts one; each rank draws its own random bits."""
    alone = worker.single_process(name, wide=True, state_dtype=torch.int8)
    for rank in outcomes(f"fsdp-8-bit-{name}-{kernel}"):
        assert_close(rank["params"], alone["params"], **NOISE)
        codes = rank["state"]["0.weight"]
        assert codes["exp_avg"].dtype == torch.int8
        assert all(
            codes[key].dtype == torch.uint8 for key in ("exp_var", "exp_avg_sq") if key in codes
        )
        assert codes["exp_avg_scale"].shape == (33, 2)
        assert_sharded_like_parameters(
            {"weight": {k: v for k, v in rank["layout"]["0.weight"].items() if "scale" not in k}}
        )
        assert_resumes(rank)


@pytest.mark.parametrize("name", ["SGDF", *worker.FORMS])
def test_8_bit_state_of_two_ranks_is_loaded_by_one(outcomes, name):
    rank, _ = outcomes(f"fsdp-8-bit-{name}-fused")
    model = worker.make_model(wide=True)
    model.load_state_dict(rank["params"])
    optimizer = worker.BUILDERS[name](model.parameters(), state_dtype=torch.int8)
    state_dict = optimizer.state_dict()
    state_dict["state"] = dict(enumerate(rank["state"].values()))
    optimizer.load_state_dict(state_dict)
    assert_close(worker.outcome(model, optimizer.state), {k: rank[k] for k in ("params", "state")})
    worker.train(model, optimizer, worker.make_batches(wide=True)[:1])
    assert optimizer.state[model[0].weight]["step"] == worker.STEPS + 1
    assert model[0].weight.isfinite().all()


@pytest.mark.parametrize("kind", worker.FILTERS)
def test_fsdp_wiener_filter(outcomes, kind):
    alone = worker.single_process_filter(**worker.FILTERS[kind])
    for rank in outcomes(f"fsdp-WienerFilter-{kind}"):
        assert_close({key: rank[key] for key in alone}, alone, **ROUNDING)
        assert_sharded_like_parameters(rank["layout"])
        assert_close(rank["shards when loaded"], rank["shards"], **BITWISE)
        assert rank["layout when loaded"] == rank["layout"]


def test_fsdp_wiener_filter_8_bit_state(outcomes):
    alone = worker.single_process_filter(**worker.EIGHT_BIT_FILTER)
    for rank in outcomes("fsdp-8-bit-WienerFilter"):
        assert_close(rank["params"], alone["params"], **NOISE)
        codes = rank["state"]["0.weight"]
        assert (codes["exp_avg"].dtype, codes["exp_var"].dtype) == (torch.int8, torch.uint8)
        assert codes["exp_avg_scale"].shape == codes["exp_var_scale"].shape == (33, 2)
        assert_close(rank["shards when loaded"], rank["shards"], **BITWISE)
        assert rank["layout when loaded"] == rank["layout"]


def assert_sharded_like_parameters(layout):
    for name, tensors in layout.items():
        assert tensors["param"] is not None, f"{name} is no DTensor"
        assert len(tensors) > 1, f"{name} has no state"
        assert set(tensors.values()) == {tensors["param"]}, f"{name}: {tensors}"

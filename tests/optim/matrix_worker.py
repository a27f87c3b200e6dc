"""One of the processes behind test_matrix_distributed.py: `matrix_worker.py FOLDER RANK`."""

import copy
import sys
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import sgdf
from sgdf import FilterMuon, FilterSOAP

WORLD_SIZE, STEPS, SAVED_AFTER = 2, 9, 4
FORMS = {
    "muon": partial(FilterMuon, lr=0.02),
    "muon-K": partial(FilterMuon, lr=0.02, gain_scale=2.0, gain_power=1.0),
    "eigen": partial(FilterMuon, lr=0.02, eigenbasis=True, basis_interval=2, max_basis_dim=5),
    "soap": partial(FilterSOAP, lr=0.02, basis_interval=3, max_basis_dim=5, gain_power=1.0),
}
IN_8_BITS = "muon-int8"


class Network(nn.Module):
    """Sides that two processes divide unevenly, one that leaves the second without rows.

    Sides with a basis are short enough for gradients of full rank: else rounding would choose it.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 4)
        self.gate = nn.Linear(7, 1)
        self.experts = nn.Parameter(torch.randn(3, 4, 4))
        self.head = nn.Linear(4, 2)
        self.double()

    def forward(self, x):
        x = self.first(x).tanh()
        x = self.second(x).tanh() * self.gate(x)
        return self.head(torch.einsum("bi,eij->bj", x, self.experts).tanh())


class Wide(nn.Module):
    """A matrix whose rows are long enough for blocks of 8 bits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.spread = nn.Buffer(torch.randn(5, 900))
        self.first, self.head = nn.Linear(900, 5), nn.Linear(5, 2)
        self.double()

    def forward(self, x):
        return self.head(self.first((x @ self.spread).tanh()).tanh())


def batches():
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(STEPS, 16, 7, generator=generator, dtype=torch.float64)
    return [(batch[:, :5], batch[:, 5:]) for batch in numbers]


def my_half(some):
    mine = slice(dist.get_rank(), None, WORLD_SIZE)
    return [(inputs[mine], targets[mine]) for inputs, targets in some]


def train(model, optimizer, some):
    for inputs, targets in some:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()


def parameters(model):
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def network(name):
    return Wide() if name == IN_8_BITS else Network()


def built(name, model, **options):
    if name == IN_8_BITS:
        options["state_dtype"] = torch.int8
    return FORMS.get(name, FORMS["muon"])(sgdf.param_groups(model, named=True), **options)


def single_process(name):
    model = Network()
    train(model, built(name, model), batches())
    return parameters(model)


def sharded(name):
    model = network(name)
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    return fully_shard(model, mesh=mesh)


def ddp(name):
    model = network(name)
    optimizer = built(name, model, process_group=dist.group.WORLD)
    train(DistributedDataParallel(model), optimizer, my_half(batches()))
    bases = sum("basis_left" in state for state in optimizer.state.values())
    return {"params": parameters(model), "bases": bases}


def ddp_from_the_first_process(name):
    """Resume from what the first process saved: bases that it did not have are built anew."""
    model = Network()
    optimizer = built(name, model, process_group=dist.group.WORLD)
    parallel = DistributedDataParallel(model)
    train(parallel, optimizer, my_half(batches())[:SAVED_AFTER])
    saved = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(saved, src=0)
    resumed = built(name, model, process_group=dist.group.WORLD)
    resumed.load_state_dict(saved[0])
    train(parallel, resumed, my_half(batches())[SAVED_AFTER:])
    return {"params": parameters(model)}


def fsdp(name):
    model = sharded(name)
    optimizer = built(name, model)
    train(model, optimizer, my_half(batches())[:SAVED_AFTER])
    saved = copy.deepcopy((get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)))
    train(model, optimizer, my_half(batches())[SAVED_AFTER:])
    result = {
        "params": parameters(model),
        "bases": sum("basis_left" in state for state in optimizer.state.values()),
        "sharded": all(isinstance(s["exp_avg"], DTensor) for s in optimizer.state.values()),
        "in 8 bits": [
            n
            for n, p in model.named_parameters()
            if optimizer.state[p]["exp_avg"].dtype == torch.int8
        ],
    }
    model = sharded(name)
    optimizer = built(name, model)
    set_model_state_dict(model, saved[0])
    set_optimizer_state_dict(model, optimizer, saved[1])
    train(model, optimizer, my_half(batches())[SAVED_AFTER:])
    return result | {"resumed": parameters(model)}


def fsdp_full(name):
    """A full state dict on the first process lacks the bases of the others."""
    model = sharded(name)
    optimizer = built(name, model)
    train(model, optimizer, my_half(batches())[:SAVED_AFTER])
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = (
        get_model_state_dict(model, options=options),
        get_optimizer_state_dict(model, optimizer, options=options),
    )
    model = sharded(name)
    optimizer = built(name, model)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, saved[0], options=options)
    set_optimizer_state_dict(model, optimizer, saved[1], options=options)
    train(model, optimizer, my_half(batches())[SAVED_AFTER:])
    return {"params": parameters(model)}


def save(folder, model, optimizer):
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.save(state, checkpoint_id=folder)


def load(folder, model, optimizer):
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def from_one_and_back(name):
    """Continue in two processes what one process saved, for two steps."""
    folder = Path(sys.argv[1])
    model = sharded(name)
    optimizer = built(name, model)
    load(folder / f"one {name}", model, optimizer)
    train(model, optimizer, my_half(batches())[SAVED_AFTER : SAVED_AFTER + 2])
    save(folder / f"two {name}", model, optimizer)
    return {}


CASES = {
    f"{case.__name__}-{name}": partial(case, name)
    for case in (ddp, ddp_from_the_first_process, fsdp, fsdp_full, from_one_and_back)
    for name in FORMS
} | {f"fsdp-{IN_8_BITS}": partial(fsdp, IN_8_BITS), f"ddp-{IN_8_BITS}": partial(ddp, IN_8_BITS)}


def main(folder, rank):
    torch.set_num_threads(1)
    for case, run in CASES.items():
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / case}",
            rank=rank,
            world_size=WORLD_SIZE,
            timeout=timedelta(seconds=60),
        )
        try:
            result = run()
        except Exception:
            result = {"error": traceback.format_exc()}
        dist.destroy_process_group()
        torch.save(result, folder / f"{case}.{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

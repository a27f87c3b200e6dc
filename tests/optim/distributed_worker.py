"""One of the two processes behind test_distributed.py: `distributed_worker.py FOLDER RANK`.

Every case of `CASES` runs in its own process group and leaves its `Outcome`, or how it
failed, in FOLDER. `single_process` is what the cases have to equal.
"""

import copy
import sys
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum, WienerFilter

WORLD_SIZE = 2
STEPS = 5
SAVED_AFTER = 3  # steps

OPTIMIZERS: dict[str, partial[Optimizer]] = {
    "SGDF": partial(SGDF, lr=0.1, weight_decay=0.01),
    "FilterAdam": partial(FilterAdam, lr=0.02),
    "FilterAdamW": partial(FilterAdamW, lr=0.02, gain_scale=1.0, gain_power=0.5),
    "Momentum": partial(Momentum, lr=0.05, weight_decay=0.01),
}
#: Forms that keep other moments; they run in fewer cases.
FORMS: dict[str, partial[Optimizer]] = {
    "constant": partial(SGDF, lr=0.1, gain_scale=0.1, gain_power=0, bias_correction=False),
    "derived": partial(FilterAdamW, lr=0.02, second_moment="derived"),
}
BUILDERS = OPTIMIZERS | FORMS
LOW_PRECISION = ("FilterAdam", "Momentum")  # of all, those with most and fewest moments
EIGHT_BIT = ("SGDF", "FilterAdam", *FORMS)
CHECKPOINTS = {
    "sharded": (StateDictOptions(), StateDictOptions()),
    "full": (
        StateDictOptions(full_state_dict=True, cpu_offload=True),
        StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    ),
}
KERNELS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}

Outcome: TypeAlias = dict[str, Any]
State: TypeAlias = dict[Tensor, dict[str, Tensor]]
Batch: TypeAlias = tuple[Tensor, Tensor]


def make_model(dtype: torch.dtype = torch.float32, wide: bool = False) -> nn.Module:
    """Odd first dimensions: between two ranks 7 splits unevenly, 1 leaves a shard empty.

    A `wide` model has a weight that is worth 8-bit state.
    """
    torch.manual_seed(0)
    inputs, hidden = (300, 33) if wide else (5, 7)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1)).to(dtype)


def make_batches(dtype: torch.dtype = torch.float32, wide: bool = False) -> list[Batch]:
    inputs = 300 if wide else 5
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(STEPS, 8, inputs + 1, generator=generator).to(dtype)
    return [(batch[:, :inputs], batch[:, inputs:]) for batch in numbers]


def my_half(batches: Iterable[Batch]) -> list[Batch]:
    mine = slice(dist.get_rank(), None, WORLD_SIZE)
    return [(inputs[mine], targets[mine]) for inputs, targets in batches]


def train(model: nn.Module, optimizer: Optimizer, batches: Iterable[Batch]) -> None:
    for inputs, targets in batches:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()


def outcome(model: nn.Module, state: State, full: bool = True) -> Outcome:
    """Copies of parameters and state, by the parameter's name: `full`, or this rank's shards."""

    def copied(tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor() if full else tensor.to_local()
        return tensor.detach().clone()

    params = dict(model.named_parameters())
    return {
        "params": {name: copied(p) for name, p in params.items()},
        "state": {
            name: {key: copied(value) for key, value in state[p].items()}
            for name, p in params.items()
            if p in state
        },
    }


def single_process(
    name: str, dtype: torch.dtype = torch.float32, wide: bool = False, **options: Any
) -> Outcome:
    model = make_model(dtype, wide)
    optimizer = BUILDERS[name](model.parameters(), **options)
    train(model, optimizer, make_batches(dtype, wide))
    return outcome(model, optimizer.state)


def single_process_filter(wide: bool = False, **options: Any) -> Outcome:
    model = make_model(wide=wide)
    optimizer, wiener = filtered_sgd(model, **options)
    train(model, optimizer, make_batches(wide=wide))
    return outcome(model, wiener.state)


def filtered_sgd(model: nn.Module, **options: Any) -> tuple[Optimizer, WienerFilter]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, WienerFilter(optimizer, **options)


# --- the cases --------------------------------------------------------------------------------


def ddp(name: str) -> Outcome:
    model = make_model()
    optimizer = BUILDERS[name](model.parameters())
    train(DistributedDataParallel(model), optimizer, my_half(make_batches()))
    return outcome(model, optimizer.state)


def zero(name: str) -> Outcome:
    """Also resume from a consolidated state dict, in a second optimizer."""
    model = make_model()
    replica = DistributedDataParallel(model)
    batches = my_half(make_batches())
    optimizer = zero_optimizer(name, model)
    train(replica, optimizer, batches[:SAVED_AFTER])
    checkpoint = copy.deepcopy((model.state_dict(), consolidated(optimizer)))
    train(replica, optimizer, batches[SAVED_AFTER:])
    result = outcome(model, {}) | {"parameters with state": len(optimizer.optim.state)}
    states = consolidated(optimizer)["state"]
    names = [name for name, _ in model.named_parameters()]
    result["state"] = {names[index]: state for index, state in states.items()}

    model_state, optimizer_state = checkpoint
    model.load_state_dict(model_state)
    resumed = zero_optimizer(name, model)
    resumed.load_state_dict(optimizer_state)
    train(replica, resumed, batches[SAVED_AFTER:])
    return result | {"resumed params": outcome(model, {})["params"]}


def zero_optimizer(name: str, model: nn.Module) -> ZeroRedundancyOptimizer:
    optimizer = BUILDERS[name]
    return ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=optimizer.func, **optimizer.keywords
    )


def consolidated(optimizer: ZeroRedundancyOptimizer) -> dict[str, Any]:
    """The state dict that rank 0 collects from all, on every rank."""
    optimizer.consolidate_state_dict(to=0)
    state_dict = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(state_dict, src=0)
    return state_dict[0]


def fsdp(
    name: str, dtype: torch.dtype = torch.float32, wide: bool = False, **options: Any
) -> Outcome:
    """Also resume from every kind of checkpoint, in a new model with a new optimizer."""
    batches = make_batches(dtype, wide)
    if dtype == torch.float32:
        batches = my_half(batches)
    # else all of it on both ranks: in bfloat16 the halves' gradients would round differently

    model = sharded_model(dtype, wide)
    optimizer = BUILDERS[name](model.parameters(), **options)
    train(model, optimizer, batches[:SAVED_AFTER])
    checkpoints = {
        kind: copy.deepcopy(
            (
                get_model_state_dict(model, options=get_options),
                get_optimizer_state_dict(model, optimizer, options=get_options),
            )
        )
        for kind, (get_options, _) in CHECKPOINTS.items()
    }
    result = {"shards when saved": outcome(model, optimizer.state, full=False)}
    train(model, optimizer, batches[SAVED_AFTER:])
    result |= outcome(model, optimizer.state)
    result["shards"] = outcome(model, optimizer.state, full=False)
    result["layout"] = layout(model, optimizer.state)

    for kind, (model_state, optimizer_state) in checkpoints.items():
        model = sharded_model(dtype, wide)
        optimizer = BUILDERS[name](model.parameters(), **options)
        _, set_options = CHECKPOINTS[kind]
        set_model_state_dict(model, model_state, options=set_options)
        set_optimizer_state_dict(model, optimizer, optimizer_state, options=set_options)
        result[kind] = {
            "shards when loaded": outcome(model, optimizer.state, full=False),
            "layout when loaded": layout(model, optimizer.state),
        }
        train(model, optimizer, batches[SAVED_AFTER:])
        result[kind]["shards"] = outcome(model, optimizer.state, full=False)
    return result


def fsdp_on_disk(name: str) -> Outcome:
    """Every rank writes its shards (torch.distributed.checkpoint), and a new model resumes."""
    batches = my_half(make_batches())
    model = sharded_model()
    optimizer = BUILDERS[name](model.parameters())
    train(model, optimizer, batches[:SAVED_AFTER])
    folder = Path(sys.argv[1]) / f"shards of {name}"
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)

    model = sharded_model()
    optimizer = BUILDERS[name](model.parameters())
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    train(model, optimizer, batches[SAVED_AFTER:])
    return outcome(model, optimizer.state)


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }


def fsdp_filter(wide: bool = False, **options: Any) -> Outcome:
    model = sharded_model(wide=wide)
    optimizer, wiener = filtered_sgd(model, **options)
    train(model, optimizer, my_half(make_batches(wide=wide)))
    _, loaded = filtered_sgd(model, **options)
    loaded.load_state_dict(wiener.state_dict())
    return outcome(model, wiener.state) | {
        "layout": layout(model, wiener.state),
        "shards": outcome(model, wiener.state, full=False),
        "shards when loaded": outcome(model, loaded.state, full=False),
        "layout when loaded": layout(model, loaded.state),
    }


def sharded_model(dtype: torch.dtype = torch.float32, wide: bool = False) -> nn.Module:
    model = make_model(dtype, wide)
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD_SIZE,)))
    return model


def layout(model: nn.Module, state: State) -> dict[str, dict[str, Any]]:
    """Placements and local shape of each parameter (as "param") and moment; None: no DTensor."""
    return {
        name: {
            key: (str(value.placements), tuple(value.to_local().shape))
            if isinstance(value, DTensor)
            else None
            for key, value in {"param": p, **state[p]}.items()
            if key not in ("step", "memory_order")
        }
        for name, p in model.named_parameters()
    }


FILTERS: dict[str, dict[str, Any]] = {
    "fused": {},
    "foreach": {"fused": False},
    "constant": {"gain_scale": 0.1, "gain_power": 0},
}
EIGHT_BIT_FILTER = {"wide": True, "state_dtype": torch.int8}

CASES: dict[str, Callable[[], Outcome]] = {
    f"fsdp-WienerFilter-{kind}": partial(fsdp_filter, **options)
    for kind, options in FILTERS.items()
}
CASES["fsdp-8-bit-WienerFilter"] = partial(fsdp_filter, **EIGHT_BIT_FILTER)
for name in BUILDERS:
    CASES[f"ddp-{name}"] = partial(ddp, name)
    CASES[f"fsdp-on-disk-{name}"] = partial(fsdp_on_disk, name)
    for kernel, options in KERNELS.items():
        CASES[f"fsdp-{name}-{kernel}"] = partial(fsdp, name, **options)
for name in OPTIMIZERS:
    CASES[f"zero-{name}"] = partial(zero, name)
for name in LOW_PRECISION:
    for kernel, options in KERNELS.items():
        CASES[f"fsdp-bfloat16-{name}-{kernel}"] = partial(fsdp, name, torch.bfloat16, **options)
for name in EIGHT_BIT:
    for kernel in ("loop", "fused"):
        CASES[f"fsdp-8-bit-{name}-{kernel}"] = partial(
            fsdp, name, wide=True, state_dtype=torch.int8, **KERNELS[kernel]
        )


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    for case, run in CASES.items():
        # A new group per case: if one rank fails, the other must not meet it in the next case.
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / case}",
            rank=rank,
            world_size=WORLD_SIZE,
            timeout=timedelta(minutes=15),  # only what hangs reaches it
        )
        try:
            result = run()
        except Exception:
            result = {"error": traceback.format_exc()}
        dist.destroy_process_group()
        torch.save(result, folder / f"{case}.{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

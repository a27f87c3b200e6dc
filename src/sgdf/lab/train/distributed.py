"""Several processes on one run: `torchrun --nproc-per-node N -m sgdf train ...`.

Every process sees its share of each batch, and the gradients are summed, so that N processes take
the steps that one would take with the whole batch. Batch norm alone is different: its statistics
are of a process's share, as usual, and those of the first process are kept.

With `--shard` every process also keeps no more than its share of the weights and of the
optimizer's state (FSDP2). Checkpoints are the same as those of one process.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from sgdf.support.errors import UserError


@dataclass(frozen=True)
class Team:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1
    shards: bool = False  # the weights, and not the batches alone

    def share(self, count: int) -> tuple[int, int]:
        """Where this process's part of `count` things begins, and how many they are."""
        whole, rest = divmod(count, self.size)
        return self.rank * whole + min(self.rank, rest), whole + (self.rank < rest)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Add up over the processes, in place; all at once for every dtype."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for same in by_dtype.values():
            flat = _flatten_dense_tensors(same)
            dist.all_reduce(flat)
            for tensor, total in zip(same, _unflatten_dense_tensors(flat, same), strict=True):
                tensor.copy_(total)

    def spread(self, model: nn.Module, device: torch.device) -> None:
        """Leave every process its part of the weights, if that is wanted; they meet in blocks."""
        if not self.shards:
            return
        # Not in every build of torch; below, what is sharded is known by what it can do.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP2's wish
        mesh = init_device_mesh(device.type, (self.size,))
        for block in (*blocks(model), model):
            fully_shard(block, mesh=mesh)

    def follow_(self, tensors: Iterable[Tensor]) -> None:
        """Take the first process's values, in place."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, 0)

    def first_says(self, value: Any) -> Any:
        """What the first process has, in all of them."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def all_say(self, value: Any) -> list[Any]:
        """What every process has, in all of them."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process; all of them have to ask."""
        return any(self.all_say(flag))


ALONE = Team()


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What a network is a sequence of: the parts whose weights are needed at the same time."""
    for part in model.children():
        if isinstance(part, nn.Sequential | nn.ModuleList):
            yield from (block for block in part if any(True for _ in block.parameters()))
        else:
            yield from blocks(part)


@contextlib.contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Have all weights in every process, for work in which they do not keep step."""
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "unshard")]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def gathered(value: Any) -> Any:
    """A state dict with its shards put together, on the CPU; all processes have to ask for it."""
    if isinstance(value, dict):
        return {key: gathered(part) for key, part in value.items()}
    return value.full_tensor().cpu() if is_sharded(value) else value


def scattered(whole: Any, like: Any) -> Any:
    """This process's part of a tensor, where it keeps a part of one of that shape."""
    if not is_sharded(like) or not isinstance(whole, Tensor) or whole.shape != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)


def is_sharded(value: Any) -> bool:
    return hasattr(value, "full_tensor")


def is_team() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextlib.contextmanager
def joined(device: torch.device, *, shard: bool = False) -> Iterator[tuple[Team, torch.device]]:
    """Meet the other processes, if there are any; each has a GPU of its own."""
    if shard and not is_team():
        raise UserError(
            "--shard spreads the weights over several processes: start with torchrun "
            "--nproc-per-node N -m sgdf ..."
        )
    if not is_team():
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    meet("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), shard), device
    finally:
        dist.destroy_process_group()


def meet(backend: str) -> None:
    """As `init_process_group` does, but for a restart by torchrun.

    There gloo of torch 2.15 finds the addresses of the processes before, which are dead: every
    attempt needs names of its own in the store that torchrun keeps.
    """
    values = os.environ
    if values.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend)
        return
    from torch._C._distributed_c10d import PrefixStore, TCPStore  # not in every build of torch

    store = TCPStore(values["MASTER_ADDR"], int(values["MASTER_PORT"]), is_master=False)
    named = PrefixStore(f"sgdf-{values['TORCHELASTIC_RESTART_COUNT']}", store)
    rank, size = int(values["RANK"]), int(values["WORLD_SIZE"])
    dist.init_process_group(backend, store=named, rank=rank, world_size=size)

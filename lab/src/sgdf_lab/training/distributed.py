"""Several processes on one run: `torchrun --nproc-per-node N -m sgdf train ...`.

Every process computes its share of each batch and the gradients are summed, so N processes take
the steps of one process. Only batch norm differs: its statistics are those of a process's share,
as usual, and a checkpoint has those of the first process.

With `--shard` every process also stores only its share of the weights and of the optimizer's
state (FSDP2). Checkpoints are the same as those of one process.
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

from sgdf_lab.support.errors import UserError


@dataclass(frozen=True)
class Team:
    """The processes of a run, and the rank of this one among them."""

    rank: int = 0
    size: int = 1
    shards: bool = False  # share the weights too, not only the batches

    def share(self, count: int) -> tuple[int, int]:
        """This process's part of `count` things: the first, and how many."""
        least, rest = divmod(count, self.size)
        return self.rank * least + min(self.rank, rest), least + (self.rank < rest)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Sum over the processes, in place, in one message for each dtype."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for group in by_dtype.values():
            flat = _flatten_dense_tensors(group)
            dist.all_reduce(flat)
            for tensor, total in zip(group, _unflatten_dense_tensors(flat, group), strict=True):
                tensor.copy_(total)

    def shard(self, model: nn.Module, device: torch.device) -> None:
        """With `shards`, keep this process's part of the weights; they are gathered by block."""
        if not self.shards:
            return
        # Not in every build of torch, so sharded tensors are recognised below by their methods.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # for FSDP2
        mesh = init_device_mesh(device.type, (self.size,))
        for block in (*blocks(model), model):
            fully_shard(block, mesh=mesh)

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite with the first process's values."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, 0)

    def first_says(self, value: Any) -> Any:
        """The first process's value, in all of them."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all processes by rank, in all of them."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process; all of them have to call this."""
        return any(self.all_gather(flag))


ALONE = Team()


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The parts that a network runs in sequence: their weights are needed at the same time."""
    for part in model.children():
        if isinstance(part, nn.Sequential | nn.ModuleList):
            yield from (block for block in part if any(True for _ in block.parameters()))
        else:
            yield from blocks(part)


@contextlib.contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Gather all weights in every process, for work in which processes do not keep step."""
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
    """A state dict with its shards put together on the CPU; all processes have to call this."""
    if isinstance(value, dict):
        return {key: gathered(part) for key, part in value.items()}
    return value.full_tensor().cpu() if is_sharded(value) else value


def scattered(value: Any, like: Any, *, rows: bool = False) -> Any:
    """This process's shard of a tensor, if `like` is a shard of one of that shape.

    With `rows` it is enough that the tensor has as many rows.
    """
    if not is_sharded(like) or not isinstance(value, Tensor) or is_sharded(value):
        return value
    if value.shape != like.shape and not (rows and value.shape[:1] == like.shape[:1]):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def is_sharded(value: Any) -> bool:
    return hasattr(value, "full_tensor")


def is_team() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextlib.contextmanager
def joined(device: torch.device, *, shard: bool = False) -> Iterator[tuple[Team, torch.device]]:
    """Connect to the other processes, if there are any; each has a GPU of its own."""
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
    init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), shard), device
    finally:
        dist.destroy_process_group()


def init_process_group(backend: str) -> None:
    """torch's, made to survive a restart by torchrun.

    After a restart gloo of torch 2.15 finds the addresses of the dead processes in torchrun's
    store, so every attempt gets a prefix of its own there.
    """
    env = os.environ
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend)
        return
    from torch._C._distributed_c10d import PrefixStore, TCPStore  # not in every build of torch

    store = TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=False)
    prefixed = PrefixStore(f"sgdf-{env['TORCHELASTIC_RESTART_COUNT']}", store)
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=size)

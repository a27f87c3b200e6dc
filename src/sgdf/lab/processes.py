"""Several processes on one run: `torchrun --nproc-per-node N -m sgdf train ...`.

Every process sees its share of each batch, and the gradients are summed, so that N processes take
the steps that one would take with the whole batch. Batch norm alone is different: its statistics
are of a process's share, as usual, and those of the first process are kept.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


@dataclass(frozen=True)
class Team:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1

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


def is_team() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[tuple[Team, torch.device]]:
    """Meet the other processes, if there are any; each has a GPU of its own."""
    if not is_team():
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    meet("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), dist.get_world_size()), device
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

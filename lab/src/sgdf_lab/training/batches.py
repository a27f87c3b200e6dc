"""What the loop asks of a data pipeline, and how batches are cut and seeded."""

import hashlib
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Batches(Protocol):
    """The training examples of a task, in an order that seed and epoch decide.

    An epoch is what the steps up to an evaluation take: a pass over the data, or the examples of a
    number of steps. They are counted from 0.
    """

    position: Tensor  # of the next example in the epoch's order, on the device
    resident: bool  # all data is on the device, so a step can be captured with its batch

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """A hash of what identifies the examples, wherever they were read from."""

    def draw(self, epoch: int) -> None:
        """Prepare an epoch while the device works on the one before."""

    def begin(self, epoch: int) -> None:
        """Rewind `position` to the first example of the epoch."""

    def take(self, position: Tensor, size: int) -> tuple[Any, Any]:
        """Inputs and targets of the `size` examples from `position` on."""


class PlannedBatches:
    """Examples on the device, in a plan that is drawn on the CPU from (seed, epoch) only.

    It is the same for every optimizer, on every device and after any interruption, and a CUDA graph
    reads it from a tensor that is filled before the steps begin.
    """

    resident = True

    def __init__(self, plan: Tensor) -> None:
        self.plan = plan
        self.position = torch.zeros((), dtype=torch.int64, device=plan.device)
        self.drawn: tuple[int, Tensor] | None = None

    def drawn_plan(self, epoch: int) -> NDArray[Any]:
        raise NotImplementedError

    def draw(self, epoch: int) -> None:
        """Draw an epoch's plan ahead of time, while a GPU has work to do."""
        self.drawn = epoch, torch.from_numpy(self.drawn_plan(epoch))

    def begin(self, epoch: int) -> None:
        """Load the epoch's plan and rewind to its first example."""
        if self.drawn is None or self.drawn[0] != epoch:
            self.draw(epoch)
        assert self.drawn is not None
        self.plan.copy_(self.drawn[1])
        self.position.zero_()


def digest_of(*arrays: NDArray[Any]) -> str:
    """The sha256 of arrays, one after the other."""
    checksum = hashlib.sha256()
    for array in arrays:
        checksum.update(np.ascontiguousarray(array).view(np.uint8).data)
    return checksum.hexdigest()


def batch_sizes(examples: int, batch: int) -> list[int]:
    """Full batches and the rest as a smaller last one: the published protocol drops nothing."""
    rest = examples % batch
    return [batch] * (examples // batch) + ([rest] if rest else [])


def micro_batch_sizes(size: int, count: int) -> list[int]:
    """Split a batch into `count` micro-batches, or fewer; sizes differ by one at most."""
    least, rest = divmod(size, count)
    return [part for part in (least + (i < rest) for i in range(count)) if part]


def seed_for(purpose: str, seed: int, epoch: int = 0) -> int:
    """Independent seeds: one for each purpose, seed and epoch."""
    words = [seed, epoch, *purpose.encode()]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))

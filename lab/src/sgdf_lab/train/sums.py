"""What is summed on the device through an epoch, for its metrics."""

import torch
from torch import Tensor


class EpochSums:
    """What an epoch adds up on the device, without asking for it."""

    def __init__(self, device: torch.device) -> None:
        def zero(dtype: torch.dtype) -> Tensor:
            return torch.zeros((), device=device, dtype=dtype)

        self.loss = zero(torch.float64)
        self.correct = zero(torch.int64)
        self.steps = zero(torch.int64)
        self.norms = {name: zero(torch.float64) for name in ("gradient", "direction")}

    def zero(self) -> None:
        for value in (self.loss, self.correct, self.steps, *self.norms.values()):
            value.zero_()

    def add(self, loss: Tensor, correct: Tensor) -> None:
        self.loss += loss
        self.correct += correct

    def values(self) -> tuple[Tensor, ...]:
        return (self.loss, self.correct, *self.norms.values())

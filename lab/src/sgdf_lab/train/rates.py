"""The learning rate of every group of parameters, scaled from its own initial rate."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class GroupRates:
    """Keeps the ratio of every group's rate to that of the run.

    Most optimizers have one rate, and a ratio of 1: nothing is multiplied then. With the rate as a
    tensor, which captured steps read, groups of another rate have a tensor of their own.
    """

    def __init__(self, optimizers: Iterable[Optimizer], lr: Tensor | float) -> None:
        self.optimizers = list(optimizers)
        self.ratios = [
            [ratio(group.get("lr"), lr) for group in optimizer.param_groups]
            for optimizer in self.optimizers
        ]
        if isinstance(lr, Tensor):
            for group, factor in self._groups():
                group["lr"] = lr if factor == 1 else torch.mul(lr, factor)

    def _groups(self) -> Iterable[tuple[dict[str, Any], float]]:
        """Every group and its ratio; groups that were added since then have the run's rate."""
        for optimizer, ratios in zip(self.optimizers, self.ratios, strict=True):
            for i, group in enumerate(optimizer.param_groups):
                yield group, ratios[i] if i < len(ratios) else 1.0

    def set(self, lr: Tensor | float) -> None:
        """Scale all groups to a rate of the run; tensors are changed in place."""
        for group, factor in self._groups():
            if isinstance(lr, Tensor):
                if group["lr"] is not lr:
                    group["lr"].copy_(lr * factor)
            elif isinstance(group.get("lr"), Tensor):  # a compiled step has it as an input
                group["lr"].fill_(lr * factor)
            else:
                group["lr"] = lr if factor == 1 else lr * factor


def ratio(rate: Any, lr: Tensor | float) -> float:
    """1 if either is no number or the run's rate is 0."""
    if isinstance(rate, Tensor):
        rate = rate.item() if rate.numel() == 1 else None
    try:
        own, of_run = float(rate), float(lr)
    except (TypeError, ValueError):
        return 1.0
    return own / of_run if of_run != 0 and own != of_run else 1.0

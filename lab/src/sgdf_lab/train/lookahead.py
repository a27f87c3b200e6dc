"""Lookahead with a growing memory: slow weights that follow the fast ones and replace them.

Every few steps the slow weights move towards the fast ones, and the fast ones continue from there
(Zhang et al. 2019, arXiv:1907.08610). Here the slow weights keep more of themselves the longer the
run has lasted, and the run ends with them (Jordan 2024, arXiv:2404.00498). Running statistics of
norms take part.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sgdf_lab.train.checkpoints import DamagedCheckpoint

DECAY = 0.95  # per step: the memory at the end of the run
POWER = 3  # of the part of the run that is done


def decays(first: int, count: int, total: int, every: int) -> list[float]:
    """For `count` steps from `first` on, counted from 0: what the slow weights keep.

    Used after every `every`th step, and after the last step of the run, which is 1 unless it is
    one of these.

    >>> [round(decay, 4) for decay in decays(0, 4, 4, 3)]  # after step 3: 0.95^3 (3/4)^3
    [0.0, 0.0, 0.3617, 1.0]
    """

    def after(steps: int) -> float:
        if steps % every == 0:
            return float(DECAY**every * (steps / total) ** POWER)
        return 1.0 if steps == total else 0.0

    return [after(first + i + 1) for i in range(count)]


def is_due(step: int, total: int, every: int) -> bool:
    """Whether the slow weights move after this step, counted from 0."""
    return (step + 1) % every == 0 or step + 1 == total


class Lookahead:
    """The slow weights of a model, which start as a copy of it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.slow = {name: value.detach().clone() for name, value in self._fast().items()}

    def _fast(self) -> dict[str, Tensor]:
        state = self.model.state_dict()
        return {name: value for name, value in state.items() if value.is_floating_point()}

    @torch.no_grad()
    def update(self, decay: Tensor) -> None:
        """Move the slow weights to the fast ones, and the fast ones there."""
        for name, fast in self._fast().items():
            slow = self.slow[name]
            slow.copy_(decay * slow + (1 - decay) * fast)
            fast.copy_(slow)

    def check(self, saved: Any) -> None:
        """Raise `DamagedCheckpoint` unless names and shapes are those of the model."""
        if not isinstance(saved, Mapping) or saved.keys() != self.slow.keys():
            raise DamagedCheckpoint("it does not have the slow weights of this model")
        for name, value in self.slow.items():
            if getattr(saved[name], "shape", None) != value.shape:
                raise DamagedCheckpoint(f"slow {name} does not have the shape {list(value.shape)}")

    def load(self, saved: Mapping[str, Tensor]) -> None:
        for name, value in self.slow.items():
            value.copy_(saved[name])

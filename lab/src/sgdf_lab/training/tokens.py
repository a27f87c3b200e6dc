"""Text that stays on the device as tokens, in windows that seed and step decide."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgdf_lab.data.tokens import Tokens
from sgdf_lab.training.batches import PlannedBatches, seed_for

EVALUATION_BATCH = 1 << 14  # tokens


def resident(tokens: NDArray[Any], device: torch.device) -> Tensor:
    """On the device; bytes as they are, larger tokens as int32, which every device can index."""
    kept = tokens if tokens.dtype == np.uint8 else tokens.astype(np.int32)
    return torch.from_numpy(kept).to(device)


def windows(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """The windows that begin at `starts`: the tokens of each, and for each token the next."""
    where = starts[:, None] + torch.arange(context + 1, device=tokens.device)
    taken = tokens[where].long()
    return taken[:, :-1], taken[:, 1:]


class TokenBatches(PlannedBatches):
    """Training windows: of each step, `batch` that begin anywhere in the text."""

    def __init__(
        self,
        tokens: Tokens,
        device: torch.device,
        *,
        seed: int,
        steps: int,
        batch: int,
        context: int,
    ) -> None:
        super().__init__(torch.zeros(steps * batch, dtype=torch.int64, device=device))
        self.tokens = resident(tokens.train, device)
        self.digest = tokens.digest
        self.seed, self.steps, self.batch, self.context = seed, steps, batch, context

    @property
    def starts(self) -> Tensor:
        """Where the windows between two evaluations begin."""
        return self.plan

    def __len__(self) -> int:
        """Windows between two evaluations, which the loop takes for an epoch."""
        return len(self.starts)

    def fingerprint(self) -> str:
        return self.digest

    def drawn_plan(self, epoch: int) -> NDArray[np.int64]:
        first = epoch * self.steps
        return np.concatenate([self._starts(first + step) for step in range(self.steps)])

    def _starts(self, step: int) -> NDArray[np.int64]:
        random = np.random.default_rng(seed_for("windows", self.seed, step))
        return random.integers(0, len(self.tokens) - self.context, self.batch, dtype=np.int64)

    def take(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        where = position + torch.arange(size, device=position.device)
        return windows(self.tokens, self.starts[where], self.context)


class EvaluationWindows:
    """Windows spread evenly over the validation text: the same for every run and step."""

    def __init__(
        self, tokens: NDArray[Any], device: torch.device, *, context: int, most: int
    ) -> None:
        self.tokens, self.context = resident(tokens, device), context
        possible = (len(tokens) - 1) // context  # side by side
        count = min(possible, max(most // context, 1))
        self.starts = torch.arange(count, device=device) * possible // count * context

    def __len__(self) -> int:
        return len(self.starts)

    def batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The `count` windows from `first` on, in batches."""
        for starts in self.starts[first : first + count].split(
            max(EVALUATION_BATCH // self.context, 1)
        ):
            if len(starts):
                yield windows(self.tokens, starts, self.context)

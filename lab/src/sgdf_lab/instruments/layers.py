"""The layers of a GPT as places in the vector of all its parameters, and the gains found there."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.models.gpt import GPT

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SAMPLED = 2000  # coordinates of each part

#: By the end of a parameter's name. The rows of qkv are those of queries, keys and values.
KINDS = {
    "attention.qkv.weight": ("query", "key", "value"),
    "attention.out.weight": ("attention out",),
    "mlp.into.weight": ("MLP in",),
    "mlp.out.weight": ("MLP out",),
    "norm.weight": ("norms",),
    "embedding.weight": ("embedding and head",),  # one matrix, in this model
}


class Part(NamedTuple):
    """Coordinates `start` to `stop` of the vector; `depth` counts the blocks from 1."""

    kind: str
    depth: int | None  # None outside the blocks
    start: int
    stop: int


@dataclass(frozen=True)
class GainsOfPart:
    kind: str
    depth: int | None
    quantiles: list[float]  # of K, at QUANTILES
    mean: float


def parts_of(model: GPT) -> list[Part]:
    """The parts of the vector, in its order."""
    parts, start = [], 0
    for name, parameter in model.named_parameters():
        block = re.match(r"blocks\.(\d+)\.", name)
        depth = int(block[1]) + 1 if block else None
        kinds = next(kinds for ending, kinds in KINDS.items() if name.endswith(ending))
        length = parameter.numel() // len(kinds)
        for kind in kinds:
            parts.append(Part(kind, depth, start, start + length))
            start += length
    return parts


def gains_by_part(gain: Tensor, parts: Sequence[Part], seed: int) -> list[GainsOfPart]:
    """Quantiles of K over rows of replicas, at a seeded choice of coordinates of each part."""
    found = []
    for i, part in enumerate(parts):
        size = part.stop - part.start
        random = np.random.default_rng([seed, i])
        chosen = np.sort(random.choice(size, min(size, SAMPLED), replace=False)) + part.start
        values = gain[:, torch.from_numpy(chosen).to(gain.device)].double().flatten()
        at = torch.tensor(QUANTILES, dtype=torch.float64, device=gain.device)
        quantiles = values.quantile(at).tolist()
        found.append(GainsOfPart(part.kind, part.depth, quantiles, values.mean().item()))
    return found

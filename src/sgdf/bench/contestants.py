"""The optimizers that are compared, each on one of its execution paths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from sgdf import SGDF, FilterAdam, Momentum
from sgdf.bench.shapes import Shape, elements

LR = 1e-12  # too small to move a parameter; 0 might be skipped by an optimizer


@dataclass(frozen=True)
class Contestant:
    """An optimizer on one of its paths; `state` estimates its state, in bytes per parameter."""

    name: str
    optimizer: type[Optimizer]
    path: str
    settings: dict[str, Any] = field(hash=False)
    state: float
    dtype: torch.dtype = torch.float32

    def create(self, params: list[Tensor]) -> Optimizer:
        return self.optimizer(params, lr=LR, **self.settings)  # type: ignore[call-arg]

    @property
    def title(self) -> str:
        params = "" if self.dtype == torch.float32 else f", {dtype_name(self.dtype)} parameters"
        return f"{self.optimizer.__name__} {self.path}{params}"

    @property
    def ours(self) -> bool:
        return self.optimizer.__module__.startswith("sgdf")

    @property
    def fused(self) -> bool:
        return self.path.startswith("fused")

    def workspace(self, shapes: Sequence[Shape]) -> int:
        """An upper estimate of the bytes that a step allocates and frees."""
        if self.fused:
            return 0
        temporaries = 5 * 4
        if self.path == "foreach":
            return temporaries * elements(shapes)
        return 2 * temporaries * max(math.prod(shape) for shape in shapes)

    def runs_on(self, list_name: str, device: str) -> bool:
        """Exclude the loop over the largest list, which takes minutes, and bfloat16 on CPUs."""
        if device == "cuda":
            return not (self.path == "loop" and list_name == "gpt")
        return self.dtype == torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """fp32, bf16, ..."""
    return str(dtype).removeprefix("torch.").replace("float", "fp").replace("bfp", "bf")


FUSED, FOREACH, LOOP = {"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}
BF16_STATE: dict[str, Any] = {"fused": True, "state_dtype": torch.bfloat16}
INT8_STATE: dict[str, Any] = {"fused": True, "state_dtype": torch.int8}
RANDOM_ROUNDING = {"fused": True, "stochastic_rounding": True}
HEAVY_BALL = {"momentum": 0.9}
BF16, BF16_PATH, INT8_PATH = torch.bfloat16, "fused, bf16 state", "fused, int8 state"

CONTESTANTS = (
    Contestant("sgd-fused", SGD, "fused", HEAVY_BALL | FUSED, 4),
    Contestant("sgd-foreach", SGD, "foreach", HEAVY_BALL | FOREACH, 4),
    Contestant("adamw-fused", AdamW, "fused", FUSED, 8),
    Contestant("adamw-foreach", AdamW, "foreach", FOREACH, 8),
    Contestant("sgdf-loop", SGDF, "loop", LOOP, 8),
    Contestant("sgdf-foreach", SGDF, "foreach", FOREACH, 8),
    Contestant("sgdf-fused", SGDF, "fused", FUSED, 8),
    Contestant("sgdf-fused-bf16-state", SGDF, BF16_PATH, BF16_STATE, 4),
    Contestant("sgdf-fused-int8-state", SGDF, INT8_PATH, INT8_STATE, 2.1),
    Contestant("filteradam-foreach", FilterAdam, "foreach", FOREACH, 12),
    Contestant("filteradam-fused", FilterAdam, "fused", FUSED, 12),
    Contestant("filteradam-fused-int8-state", FilterAdam, INT8_PATH, INT8_STATE, 3.2),
    Contestant("momentum-fused", Momentum, "fused", FUSED, 4),
    Contestant("adamw-fused-bf16", AdamW, "fused", FUSED, 4, BF16),
    Contestant("sgdf-fused-bf16", SGDF, "fused", FUSED, 8, BF16),
    Contestant("sgdf-fused-bf16-random", SGDF, "fused, random rounding", RANDOM_ROUNDING, 8, BF16),
)

"""The optimizers of the golden checkpoints, and numbers that every machine makes alike."""

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import sgdf
from sgdf.kernels import matrix

STEPS = 3  # before the checkpoint is written
SHAPES = ((4, 3), (5,))
SHAPES_8_BIT = ((32, 128), (5,))  # the smallest that is kept in 8 bits, and one that is not
SHOWN = 64  # elements of a tensor of which the next step is recorded


@dataclass(frozen=True)
class Case:
    """An optimizer with its settings, and the dtype of its parameters."""

    optimizer: str
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    @property
    def steps_after(self) -> int:
        """How many steps show every part of the state: the second one is in a refreshed basis."""
        return 2 if "basis_interval" in self.settings else 1

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return SHAPES_8_BIT if self.settings.get("state_dtype") == torch.int8 else SHAPES


STATES = {
    "float32": {},
    "bf16": {"state_dtype": torch.bfloat16},
    "int8": {"state_dtype": torch.int8},
}
SECOND_MOMENTS = ("separate", "derived", "fluctuation")


def all_cases() -> dict[str, Case]:
    cases = {
        "SGDF-decay": Case("SGDF", {"weight_decay": 0.1}),
        "SGDF-constant-gain": Case("SGDF", {"gain_scale": 0.1, "gain_power": 0.0}),
        "SGDF-float64": Case("SGDF", dtype=torch.float64),
        "SGDF-bf16-parameters": Case("SGDF", dtype=torch.bfloat16),
        "SGDF-capturable": Case("SGDF", {"capturable": True, "fused": False}),
        "Momentum-float32": Case("Momentum"),
        "Momentum-bf16": Case("Momentum", STATES["bf16"]),
    }
    # A longer side would have gradients of lower rank, and rounding would choose its basis.
    in_basis = {"basis_interval": 1, "gain_power": 1.0, "max_basis_dim": 32}
    for state, settings in STATES.items():
        cases[f"FilterMuon-{state}"] = Case("FilterMuon", settings)
        eigen = {"eigenbasis": True, **in_basis, **settings}
        cases[f"FilterMuon-eigenbasis-{state}"] = Case("FilterMuon", eigen)
        cases[f"FilterSOAP-{state}"] = Case("FilterSOAP", {**in_basis, **settings})
        cases[f"SGDF-{state}"] = Case("SGDF", settings)
        cases[f"WienerFilter-{state}"] = Case("WienerFilter", settings)
        for moment in SECOND_MOMENTS:
            for name in ("FilterAdam", "FilterAdamW"):
                cases[f"{name}-{moment}-{state}"] = Case(
                    name, {"second_moment": moment, **settings}
                )
    return cases


def numbers(shape: tuple[int, ...], salt: int) -> Tensor:
    """Multiples of 1/512 between -1 and 1: exact in float32, and the same everywhere."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7919 + salt * 104729) % 1009 - 504).div(512).reshape(shape)


def parameters(case: Case) -> list[Tensor]:
    start = [numbers(shape, salt=1).to(case.dtype) for shape in case.shapes()]
    return [p.requires_grad_() for p in start]


class Pair:
    """An optimizer, and a filter in front of it if that is the case."""

    def __init__(self, case: Case) -> None:
        self.case, self.params = case, parameters(case)
        self.filter = None
        if case.optimizer == "WienerFilter":
            self.optimizer = torch.optim.SGD(self.params, lr=0.125)
            self.filter = sgdf.WienerFilter(self.optimizer, **case.settings)
        else:
            kind = getattr(sgdf, case.optimizer)
            self.optimizer = kind(self.params, lr=0.125, **case.settings)

    def state_dicts(self) -> dict[str, Any]:
        filters = {"filter": self.filter.state_dict()} if self.filter else {}
        return {"optimizer": self.optimizer.state_dict(), **filters}

    def load(self, state_dicts: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dicts["optimizer"])
        if self.filter:
            self.filter.load_state_dict(state_dicts["filter"])

    def step(self, number: int) -> None:
        for p in self.params:
            # A trend with noise around it: neither the gain nor what it weighs is nearly zero.
            p.grad = (0.25 + numbers(tuple(p.shape), salt=number + 2)).to(p.dtype)
        # In float32 also where the CPU has bfloat16: the numbers are to be those of every machine.
        with mock.patch.object(matrix, "cpu_multiplies_bfloat16", return_value=False):
            self.optimizer.step()

    def next_update(self) -> list[Tensor]:
        """What the step after the checkpoint adds to parameters with known values, in part."""
        low = self.params[0].dtype == torch.bfloat16
        with torch.no_grad():
            for p in self.params:  # those in bfloat16 are small, or rounding would hide the step
                p.copy_(numbers(tuple(p.shape), salt=1) * (2**-8 if low else 1))
        before = [p.detach().clone().float() for p in self.params]
        for number in range(self.case.steps_after):
            self.step(STEPS + number)
        changes = [(p.detach() - b).flatten() for p, b in zip(self.params, before, strict=True)]
        return [change[:: max(1, len(change) // SHOWN)].clone() for change in changes]

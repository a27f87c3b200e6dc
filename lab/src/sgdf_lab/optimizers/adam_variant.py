"""What the variants of Adam here share: settings, state, and the step over all groups."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from sgdf.optim.settings import require


class AdamVariant(Optimizer):
    """Base class. A subclass updates the parameters of one group that have a gradient."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        capturable: bool,
    ) -> None:
        require(lr >= 0.0, "learning rate", lr)
        require(len(betas) == 2, "betas value", betas)
        for index, beta in enumerate(betas):
            require(0.0 <= beta < 1.0, f"beta parameter at index {index}", beta)
        require(eps >= 0.0, "epsilon value", eps)
        require(weight_decay >= 0.0, "weight_decay value", weight_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "capturable": capturable})

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self.update(group, params)
        return loss

    def state_of(self, p: Tensor, capturable: bool) -> dict[str, Tensor]:
        state = self.state[p]
        if "exp_avg" not in state:
            state["step"] = torch.zeros((), device=p.device if capturable else "cpu")
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        return state


def bias_correction(beta: float, step: Tensor) -> Tensor:
    """1 - beta**step, without cancellation for a beta near 1."""
    return -torch.expm1(step.double() * (math.log(beta) if beta > 0 else -math.inf))

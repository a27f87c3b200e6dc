"""The momentum methods the paper compares with, as one rule."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.kernels import eager
from sgdf.optim.base import Columns, FilterOptimizer


class Momentum(FilterOptimizer):
    r"""Unified momentum (the paper's Definition 2.1).

    .. math::
        m_t = \beta m_{t-1} + \mu g_t, \qquad \theta_t = \theta_{t-1} - \alpha\,m_t

    ``mu=1`` is classical momentum (SGD-CM, torch's ``SGD(momentum=beta)``), ``mu=1-beta`` a
    moving average (SGD-EMA, not bias-corrected), ``beta=0, mu=1`` plain SGD.

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate; a number or a 1-element tensor.
        beta: how much of the old momentum stays.
        mu: how much of the gradient is added.
        weight_decay: L2 penalty, added to the gradient.
        decoupled_weight_decay, maximize, foreach, fused, differentiable, state_dtype:
            as in :class:`SGDF`.

    It has no step counter, so CUDA graphs may capture it as it is.

    >>> model = torch.nn.Linear(10, 1)
    >>> ema = Momentum(model.parameters(), lr=0.5, beta=0.9, mu=0.1)
    """

    state_keys: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    counts_steps: ClassVar[bool] = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        beta: float = 0.9,
        mu: float = 1.0,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "beta": beta,
            "mu": mu,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "differentiable": differentiable,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], path: str, columns: Columns) -> None:
        names = ("lr", "beta", "mu", "weight_decay", "decoupled_weight_decay", "maximize")
        settings = {name: group[name] for name in names}
        if path == "fused":
            self.run_fused(group, "momentum_fused", columns, settings)
        elif path == "foreach":
            eager.momentum_foreach(*columns, **settings)
        else:
            eager.momentum_loop(*columns, **settings)

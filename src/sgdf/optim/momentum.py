"""The momentum methods the paper compares with, as one rule."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.filter import FilterSettings
from sgdf.kernels.work import MOMENTUM, Rule
from sgdf.optim.optimizer import FilterOptimizer
from sgdf.optim.settings import explains_conversion, given_settings


class Momentum(FilterOptimizer):
    """Unified momentum (the paper's Definition 2.1).

    ```text
    m <- beta m + mu g
    p <- p - lr m
    ```

    ``mu=1`` is classical momentum (SGD-CM, torch's ``SGD(momentum=beta)``), ``mu=1-beta`` a
    moving average (SGD-EMA, not bias-corrected), ``beta=0, mu=1`` plain SGD. There is no step
    counter, so CUDA graphs can capture a step as it is. As in torch's SGD, nothing bounds m.

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate; a number or a 1-element tensor.
        beta: how much of the old momentum stays.
        mu: how much of the gradient is added.
        weight_decay: L2 penalty, added to the gradient.
        decoupled_weight_decay: shrink the parameter instead, as AdamW does.
        maximize: ascend instead of descend.
        foreach: update lists of tensors at a time. None: as torch would choose.
        fused: one kernel over all tensors: Triton on CUDA (float32, bfloat16, float16), C++ on the
            CPU, compiled once at the very first step. None: if it suits every parameter.
        differentiable: let autograd through the step.
        state_dtype: dtype of the momentum, but not ``torch.int8``. None: the parameter's, but at
            least float32. `load_state_dict` keeps it, and converts what it loads.

    Examples:
        >>> model = torch.nn.Linear(10, 1)
        >>> ema = Momentum(model.parameters(), lr=0.5, beta=0.9, mu=0.1)
        >>> model(torch.randn(8, 10)).square().mean().backward()
        >>> ema.step()

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter", Definition 2.1.
    """

    all_moments: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    counts_steps: ClassVar[bool] = False

    @explains_conversion
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
        super().__init__(params, given_settings(locals()))

    def rule(self, group: dict[str, Any]) -> Rule:
        return Rule(
            MOMENTUM,
            FilterSettings((group["beta"], 0.0), gain_scale=group["mu"]),
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
            maximize=group["maximize"],
            differentiable=group["differentiable"],
        )

"""SGDF: gradient descent along the Wiener-filtered gradient."""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.optim.optimizer import FilterOptimizer
from sgdf.optim.settings import explains_conversion, given_settings


class SGDF(FilterOptimizer):
    """SGD with Filter: the step follows the gradient estimated by a Wiener filter.

    ```text
    m  <- b1 m + (1-b1) g                            trend
    s  <- b2 s + (1-b2) (g - m)^2                    fluctuation about the trend
    m^  = m / (1 - b1^t)
    s^  = s (1-b1)(1-b1^2t) / ((1+b1)(1-b2^t))       variance of m^
    K   = s^ / (s^ + (g - m^)^2 + eps)               gain, between 0 and 1
    g^  = m^ + gain_scale K^gain_power (g - m^)      estimate of the gradient
    p  <- p - lr g^
    ```

    A gradient beyond 3.6e16 (in float32, with the default betas), infinite ones included, brings no
    news: its square would overflow, so the average m stands in for it. NaN stays NaN.

    A first step with lr 0 and all gradients 0 creates the state and does not count: some trainers
    take one before they load a checkpoint. If your trainer takes it with the full learning rate,
    call ``optimizer.state.clear()`` after it.

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate; a number or a 1-element tensor. Coming from ``SGD(lr, momentum)``,
            start from ``lr / (1 - momentum)``: the filter averages gradients, momentum sums them.
            Warm up over the first 5 % of training: without it the first steps are ten times as
            long as with SGD and momentum.
        betas: decay rates of the average m and of the variance s. As with Adam, OneCycleLR cycles
            the first one, unless ``cycle_momentum=False``.
        eps: term in the denominator of K, beside *squared* gradients. If gradients are far below
            ``sqrt(eps)``, the gain is 0 and SGDF is an averaged SGD: lower eps then. With 0 the
            gain does not depend on the magnitude of the gradients.
        weight_decay: L2 penalty, added to the gradient and filtered with it.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (bias-corrected SGD-EMA).
        gain_power: exponent of the gain; 1 is the paper's, 0.5 that of the authors' 2026 release
            (with ``gain_scale=1``). 0 makes the gain the constant ``gain_scale``, and no variance
            is kept: ``1 - betas[0]`` is Nesterov's momentum.
        gain_eps: overrides eps in the gain. Exists so that SGDF and FilterAdam take the same
            arguments. Default: eps.
        correction: use the paper's ratio of the variance of an average to that of a gradient;
            without it the gain is several times larger.
        bias_correction: divide m by ``1 - betas[0] ** t``; without it the first steps are short,
            as those of SGD with momentum are.
        decoupled_weight_decay: shrink the parameter instead, as AdamW does.
        maximize: ascend instead of descend.
        foreach: update lists of tensors at a time. None: as torch would choose.
        fused: one kernel over all tensors: Triton on CUDA (float32, bfloat16, float16), C++ on the
            CPU, compiled once at the very first step. None: if it suits every parameter.
        capturable: keep the step counter on the parameter's device, for CUDA graphs.
        differentiable: let autograd through the step.
        state_dtype: dtype of the state. None: the parameter's, but at least float32.
            ``torch.int8``: 8-bit blocks, but float32 for small tensors (under 4096 elements, or
            rows under 128). `load_state_dict` keeps it, and converts what it loads.
        stochastic_rounding: round bfloat16 parameters up or down at random, so that updates below
            half a bfloat16 spacing take effect on average instead of being lost.
        rounding_seed: seed of the random rounding, of parameters and of 8-bit state.

    Examples:
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = SGDF(model.parameters(), lr=0.5, weight_decay=5e-4)
        >>> model(torch.randn(8, 10)).square().mean().backward()
        >>> optimizer.step()

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter", Algorithm 1.
    """

    @explains_conversion
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        gain_scale: float = 2.0,
        gain_power: float = 1.0,
        gain_eps: float | None = None,
        correction: bool = True,
        bias_correction: bool = True,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
    ) -> None:
        super().__init__(params, given_settings(locals()))

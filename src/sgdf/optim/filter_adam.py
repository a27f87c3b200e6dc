"""Adam whose first moment is the filtered gradient: the paper's Wiener-Adam."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.filter import DEFAULT_FORM
from sgdf.optim.optimizer import FilterOptimizer
from sgdf.optim.settings import explains_conversion, given_settings


class FilterAdam(FilterOptimizer):
    """Adam with the Wiener-filtered gradient instead of its first moment.

    ```text
    p <- p - lr g^ / (sqrt(v^) + eps)
    ```

    with g^ as in `SGDF`, v^ and the defaults as in Adam.

    Gradients beyond 3.6e16 (in float32, with the default betas), infinite ones included, count as
    that large: their squares would overflow. The step is then one after any large gradient, a few
    lr at most. NaN stays NaN.

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate; a number or a 1-element tensor.
        betas: decay rates of the average m, and of the variance s and Adam's second moment v.
        eps: term in Adam's denominator, beside the root of v.
        weight_decay: L2 penalty, added to the gradient and filtered with it.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (Adam itself).
        gain_power: exponent of the gain; 1 is the paper's, 0.5 that of the authors' 2026 release
            (with ``gain_scale=1``). 0 makes the gain the constant ``gain_scale``, which needs no
            s: ``1 - betas[0]`` is Nesterov's momentum (NAdam), half of it is close to the mean of
            K.
        gain_eps: term in the denominator of the gain, beside *squared* gradients. None: eps with
            the separate second moment, as in the paper, else 0. With 0 the gain does not depend
            on the magnitude of the gradients; with 1e-8 it goes to 0 if they are far below 1e-4,
            as in language models.
        correction: use the paper's ratio of the variance of an average to that of a gradient;
            without it the gain is several times larger.
        bias_correction: divide m by ``1 - betas[0] ** t``; without it the first steps are short.
        second_moment: where v comes from. "separate": Adam's own moving average of squared
            gradients, as in the paper. "derived": from m and s, with the same mean, so that
            nothing but m and s is kept. "fluctuation": s itself, as AdaBelief divides. None:
            "separate", or what a checkpoint has that is loaded.
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
        >>> optimizer = FilterAdam(model.parameters(), lr=1e-3)
        >>> model(torch.randn(8, 10)).square().mean().backward()
        >>> optimizer.step()

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter",
            section "Wiener Filter combines Adam".
    """

    divides: ClassVar[bool] = True
    default_second_moment: ClassVar[str] = "separate"

    @explains_conversion
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        gain_scale: float = 2.0,
        gain_power: float = 1.0,
        gain_eps: float | None = None,
        correction: bool = True,
        bias_correction: bool = True,
        second_moment: str | None = None,
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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        named = self.defaults.get("second_moment")
        if isinstance(param_group, dict) and param_group.get("second_moment", named) is None:
            param_group["second_moment"] = self.default_second_moment
        super().add_param_group(param_group)

    def own_settings(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The form too, if the user named one."""
        named = self.defaults.get("second_moment")
        if named is None and group["second_moment"] == self.default_second_moment:
            return ("state_dtype",)
        return ("state_dtype", "second_moment")


class FilterAdamW(FilterAdam):
    """`FilterAdam` with decoupled weight decay, AdamW's default of 0.01 for it, and `gain_eps=0`.

    ```text
    p <- p - lr weight_decay p
    p <- p - lr g^ / (sqrt(v^) + eps)
    ```

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate; a number or a 1-element tensor.
        betas: decay rates of the average m, and of the variance s and Adam's second moment v.
        eps: term in Adam's denominator, beside the root of v.
        weight_decay: how much of the parameter a step removes, in units of lr.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter, 0 no filter
            (AdamW itself).
        gain_power: exponent of the gain; 1 is the paper's, 0 a constant gain: see `FilterAdam`.
        gain_eps: term in the denominator of the gain, beside *squared* gradients. With 0 the
            filter does not depend on the magnitude of the gradients. None: see `FilterAdam`.
        correction: use the paper's ratio of the variance of an average to that of a gradient.
        bias_correction: divide m by ``1 - betas[0] ** t``.
        second_moment: "separate", "derived" or "fluctuation": see `FilterAdam`. None: "separate",
            or what a checkpoint has that is loaded.
        decoupled_weight_decay: False adds the weight decay to the gradient, as in Adam.
        maximize: ascend instead of descend.
        foreach: update lists of tensors at a time. None: as torch would choose.
        fused: one kernel over all tensors. None: if it suits every parameter.
        capturable: keep the step counter on the parameter's device, for CUDA graphs.
        differentiable: let autograd through the step.
        state_dtype: dtype of the state, ``torch.int8`` for 8-bit blocks: see `FilterAdam`.
        stochastic_rounding: round bfloat16 parameters up or down at random: see `FilterAdam`.
        rounding_seed: seed of the random rounding, of parameters and of 8-bit state.

    Examples:
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = FilterAdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        >>> model(torch.randn(8, 10)).square().mean().backward()
        >>> optimizer.step()

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter",
            section "Wiener Filter combines Adam".
    """

    default_second_moment: ClassVar[str] = DEFAULT_FORM.second_moment

    @explains_conversion
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        gain_scale: float = DEFAULT_FORM.gain_scale,
        gain_power: float = 1.0,
        gain_eps: float | None = DEFAULT_FORM.gain_eps,
        correction: bool = True,
        bias_correction: bool = True,
        second_moment: str | None = None,
        decoupled_weight_decay: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
    ) -> None:
        FilterOptimizer.__init__(self, params, given_settings(locals()))

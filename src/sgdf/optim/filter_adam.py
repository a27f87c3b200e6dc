"""Adam whose first moment is the filtered gradient: the paper's Wiener-Adam."""

from typing import ClassVar, Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.optim.sgdf import SGDF, Settings


class FilterAdam(SGDF):
    r"""Adam with the Wiener-filtered gradient where Adam has its first moment.

    .. math::
        \theta_t = \theta_{t-1} - \alpha\,\frac{\hat g_t}{\sqrt{\hat v_t} + \epsilon}

    :math:`\hat g` as in :class:`SGDF`, :math:`\hat v` and the defaults as in Adam. One eps
    serves both: Adam's denominator, and the gain's, where it is compared with squared gradients.
    All other arguments are those of :class:`SGDF`; ``gain_scale=0`` is Adam itself.

    >>> import torch
    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = FilterAdam(model.parameters(), lr=1e-3)
    """

    state_keys: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_var", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **settings,
        )


class FilterAdamW(FilterAdam):
    """:class:`FilterAdam` with decoupled weight decay, and AdamW's default of 0.01 for it."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        decoupled_weight_decay: bool = True,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **settings,
        )

"""EAdam: Adam with eps inside the second moment."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf_lab.optimizers.adam_variant import AdamVariant, bias_correction


class EAdam(AdamVariant):
    r"""Adam whose eps is added to the second moment at every step, and nowhere else.

    .. math::
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2 + \epsilon, \qquad
        \theta_t = \theta_{t-1} - \alpha\,\hat m_t / \sqrt{\hat v_t}

    So eps adds up, to about :math:`\epsilon / (1 - \beta_2)` (Yuan and Gao, 2020,
    arXiv:2011.02150). Weight decay is an L2 penalty, as in the authors' code.

    Args:
        params, lr, betas, eps, weight_decay: as in ``torch.optim.Adam``.
        capturable: keep the step counter on the parameter's device, for CUDA graphs.

    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = EAdam(model.parameters(), lr=1e-3)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, capturable)

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state_of(p, group["capturable"]) for p in params]
        steps, means, squares = (
            [state[key] for state in states] for key in ("step", "exp_avg", "exp_avg_sq")
        )
        grads: Any = [p.grad for p in params]
        if group["weight_decay"] != 0:
            grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        torch._foreach_add_(squares, group["eps"])
        moves = torch._foreach_div(means, torch._foreach_sqrt(squares))
        sizes = [
            group["lr"] * bias_correction(beta2, t).sqrt() / bias_correction(beta1, t)
            for t in steps
        ]
        torch._foreach_mul_(moves, sizes)
        torch._foreach_sub_(params, moves)

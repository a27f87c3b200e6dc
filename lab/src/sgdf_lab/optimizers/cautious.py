"""Cautious AdamW: AdamW without the coordinates that would move against the gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf_lab.optimizers.adam_variant import AdamVariant, bias_correction


class CautiousAdamW(AdamVariant):
    r"""AdamW with a mask on its update (Liang et al., 2024, arXiv:2411.16085).

    .. math::
        \phi_t = [u_t \circ g_t > 0], \qquad
        \theta_t = (1 - \alpha\lambda)\,\theta_{t-1}
            - \alpha\,\frac{d}{\|\phi_t\|_0 + 1}\,\phi_t \circ u_t

    where u is Adam's update and d the number of elements of the tensor: what is left of the update
    is scaled up by the share that was masked.

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate; a number or a 1-element tensor.
        betas: decay rates of the averages of the gradient and of its square.
        eps: term in the denominator.
        weight_decay: decoupled weight decay.
        capturable: keep the step counter on the parameter's device, for CUDA graphs.

    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = CautiousAdamW(model.parameters(), lr=1e-3)
    >>> model(torch.randn(8, 10)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
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
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [bias_correction(beta2, t).sqrt() for t in steps])
        torch._foreach_add_(roots, group["eps"])
        moves = torch._foreach_div(means, roots)
        masks = [(m * g > 0).to(m.dtype) for m, g in zip(means, grads, strict=True)]
        torch._foreach_mul_(moves, masks)
        sizes = [
            group["lr"] / bias_correction(beta1, t) * (mask.numel() / (mask.sum() + 1))
            for t, mask in zip(steps, masks, strict=True)
        ]
        torch._foreach_mul_(moves, sizes)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(params, moves)

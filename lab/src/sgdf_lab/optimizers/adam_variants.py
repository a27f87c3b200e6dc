"""Variants of Adam: EAdam, Cautious AdamW, and what optimizers of our own share."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from sgdf.optim.settings import require


class GroupOptimizer(Optimizer):
    """Base class. A subclass updates the parameters of one group that have a gradient."""

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


def check(lr: float | Tensor, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """Refuse bad values in torch's own words."""
    require(lr >= 0.0, "learning rate", lr)
    require(len(betas) == 2, "betas value", betas)
    for index, beta in enumerate(betas):
        require(0.0 <= beta < 1.0, f"beta parameter at index {index}", beta)
    require(eps >= 0.0, "epsilon value", eps)
    require(weight_decay >= 0.0, "weight_decay value", weight_decay)


class AdamVariant(GroupOptimizer):
    """Adam's settings and state."""

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
        check(lr, betas, eps, weight_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "capturable": capturable})

    def moments(
        self, group: dict[str, Any], params: list[Tensor], grads: Any
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The number of the step, and the averages of g and g^2 after it, for each parameter."""
        beta1, beta2 = group["betas"]
        for p in params:
            state = self.state[p]
            if "exp_avg" not in state:
                device = p.device if group["capturable"] else "cpu"
                state["step"] = torch.zeros((), device=device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        steps, means, squares = (
            [self.state[p][key] for p in params] for key in ("step", "exp_avg", "exp_avg_sq")
        )
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        return steps, means, squares


def bias_correction(beta: float, step: Tensor) -> Tensor:
    """1 - beta**step, without cancellation for a beta near 1."""
    return -torch.expm1(step.double() * (math.log(beta) if beta > 0 else -math.inf))


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

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        grads: Any = [p.grad for p in params]
        if group["weight_decay"] != 0:
            grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        steps, means, squares = self.moments(group, params, grads)
        torch._foreach_add_(squares, group["eps"])
        moves = torch._foreach_div(means, torch._foreach_sqrt(squares))
        sizes = [
            group["lr"] * bias_correction(beta2, t).sqrt() / bias_correction(beta1, t)
            for t in steps
        ]
        torch._foreach_mul_(moves, sizes)
        torch._foreach_sub_(params, moves)


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
        super().__init__(params, lr, betas, eps, weight_decay, capturable=capturable)

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        grads: Any = [p.grad for p in params]
        steps, means, squares = self.moments(group, params, grads)
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

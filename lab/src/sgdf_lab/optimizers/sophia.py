"""Sophia-G: steps divided by a diagonal estimate of the Hessian, and clipped."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.optim.settings import require
from sgdf_lab.optimizers.adam_variants import GroupOptimizer, check


class SophiaG(GroupOptimizer):
    r"""Sophia with the Gauss-Newton-Bartlett estimator (Liu et al., 2023, arXiv:2305.14342).

    .. math::
        m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad
        \theta_t = (1 - \alpha\lambda)\,\theta_{t-1}
            - \alpha\,\mathrm{clip}(m_t / \max(\rho h, \epsilon), 1)

    `h` comes from :meth:`update_hessian`, which the training loop calls every `hessian_every`
    steps after the backward pass of a *second* loss: the mean cross entropy with labels drawn
    from the model's own output. Until the first such call h is 0, and the step is the sign of m.

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate, the largest change of a weight per step; a number or 1-element tensor.
        betas: decay rates of m and of h.
        rho: factor on the curvature; a smaller one clips more.
        weight_decay: decoupled weight decay.
        eps: lower bound of the denominator.
        hessian_every: steps between two calls of `update_hessian` by the loop; 0 for never, and
            then this is sign descent with momentum.

    It has no step counter: CUDA graphs may capture it as it is.

    >>> model = torch.nn.Linear(10, 3)
    >>> optimizer = SophiaG(model.parameters(), lr=1e-4)
    >>> scores = model(torch.randn(8, 10))
    >>> labels = torch.distributions.Categorical(logits=scores).sample()
    >>> torch.nn.functional.cross_entropy(scores, labels).backward()
    >>> optimizer.update_hessian(batch_size=8)
    >>> optimizer.zero_grad()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.965, 0.99),
        rho: float = 0.04,
        weight_decay: float = 0.1,
        *,
        eps: float = 1e-12,
        hessian_every: int = 10,
    ) -> None:
        check(lr, betas, eps, weight_decay)
        require(rho >= 0.0, "rho value", rho)
        require(eps > 0.0, "epsilon value", eps)
        require(hessian_every >= 0, "hessian_every value", hessian_every)
        self.hessian_every = hessian_every
        defaults = {"lr": lr, "betas": betas, "rho": rho, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        params, grads, means, curvatures = self.columns(group)
        torch._foreach_lerp_(means, grads, 1 - group["betas"][0])
        denominators = torch._foreach_mul(curvatures, group["rho"])
        torch._foreach_clamp_min_(denominators, group["eps"])
        moves = torch._foreach_div(means, denominators)
        torch._foreach_clamp_min_(moves, -1.0)
        torch._foreach_clamp_max_(moves, 1.0)
        torch._foreach_mul_(moves, group["lr"])
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(params, moves)

    @torch.no_grad()
    def update_hessian(self, batch_size: int) -> None:
        """Average the squared gradients of the sampled loss, times the batch size, into h.

        The gradient is that of a mean over B samples: B times its square estimates the diagonal.
        The authors' code multiplies in `step(bs=5120)` instead, a number of tokens: for batches of
        128 images the curvature would be 40 times too large.
        """
        for group in self.param_groups:
            _, grads, _, curvatures = self.columns(group)
            beta2 = group["betas"][1]
            if grads:
                torch._foreach_mul_(curvatures, beta2)
                torch._foreach_addcmul_(curvatures, grads, grads, (1 - beta2) * batch_size)

    def columns(self, group: dict[str, Any]) -> tuple[list[Tensor], ...]:
        """Parameters with a gradient, their gradients, m and h."""
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            state = self.state[p]
            if "exp_avg" not in state:
                state["exp_avg"], state["hessian"] = torch.zeros_like(p), torch.zeros_like(p)
        means, curvatures = ([self.state[p][key] for p in params] for key in ("exp_avg", "hessian"))
        return params, [p.grad for p in params], means, curvatures

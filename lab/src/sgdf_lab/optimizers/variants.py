"""Optimizers that need more than the keyword arguments of their row.

Three variants of Adam that no other package has as published, and builders of other classes. The
classes of pytorch_optimizer accept any keyword silently: what a row does not name is available by
path only, as --optimizer pytorch_optimizer.AdaBelief.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from sgdf import Momentum
from sgdf.optim import require

# --- variants of Adam -----------------------------------------------------------------------------


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
        params, lr, betas, eps, weight_decay: as in ``torch.optim.AdamW``.
        capturable: keep the step counter on the parameter's device, for CUDA graphs.

    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = CautiousAdamW(model.parameters(), lr=1e-3)
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


# --- builders -------------------------------------------------------------------------------------


def sgd_ema(
    params: ParamsT, lr: float | Tensor, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1 - beta, weight_decay)


def sgd_cm(
    params: ParamsT, lr: float | Tensor, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1.0, weight_decay)


def msvag(
    params: ParamsT,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """The paper's tables give M-SVAG two betas and an eps: it uses only the first beta.

    The class has no weight decay.
    """
    from pytorch_optimizer import MSVAG

    require(weight_decay >= 0.0, "weight_decay value", weight_decay)
    require(0.0 <= betas[0] < 1.0, "betas value", betas)
    optimizer = MSVAG(params, lr, betas[0])
    for group in optimizer.param_groups:
        group.setdefault("weight_decay", weight_decay)
    optimizer.register_step_pre_hook(add_l2_penalty)
    return optimizer


def add_l2_penalty(optimizer: Optimizer, *_: Any) -> None:
    """Add it to the gradients in place, as pytorch_optimizer's own L2 penalties do."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and group["weight_decay"] != 0:
                p.grad.add_(p.detach(), alpha=group["weight_decay"])


def ademamix(
    params: ParamsT,
    lr: float,
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
    alpha: float = 5.0,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
) -> Optimizer:
    """Decoupled weight decay. `warmup_steps` raises alpha and the third beta over as many steps."""
    from pytorch_optimizer import AdEMAMix

    return AdEMAMix(
        params,
        lr,
        betas,
        weight_decay,
        weight_decouple=True,
        alpha=alpha,
        t_alpha_beta3=warmup_steps or None,
        eps=eps,
    )


def mars(
    params: ParamsT,
    lr: float,
    betas: tuple[float, float] = (0.95, 0.99),
    gamma: float = 0.025,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """MARS-AdamW; vectors are trained by AdamW, with the same learning rate and weight decay."""
    from pytorch_optimizer import MARS

    optimizer = MARS(params, lr, betas, gamma, lr_1d=lr, weight_decay=weight_decay, eps=eps)
    for group in optimizer.param_groups:
        group["weight_decay_1d"] = group["weight_decay"]
    return optimizer

"""Builders for optimizers that need more than the keyword arguments of their row.

The other classes of pytorch_optimizer are named by their rows. They accept any keyword silently:
what a row does not name is available by path only, as --optimizer pytorch_optimizer.AdaBelief.
"""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sgdf import Momentum
from sgdf.optim import require

Betas = tuple[float, float]


def sgd_ema(
    params: ParamsT, lr: float | Tensor, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1 - beta, weight_decay)


def sgd_cm(
    params: ParamsT, lr: float | Tensor, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1.0, weight_decay)


# --- pytorch_optimizer ----------------------------------------------------------------------------


def msvag(
    params: ParamsT,
    lr: float,
    betas: Betas = (0.9, 0.999),
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
    betas: Betas = (0.95, 0.99),
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

"""Builders for classes whose own arguments or defaults are not those of the paper's experiments.

The classes of pytorch_optimizer are imported where they are used. They accept any keyword silently
and decouple weight decay by default: each builder names what can be set, and fixes the rest. Their
other options are available by path: --optimizer pytorch_optimizer.AdaBelief.
"""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sgdf import Momentum
from sgdf.optim.settings import require

Betas = tuple[float, float]


def sgd_ema(
    params: ParamsT, lr: float | Tensor = 0.1, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1 - beta, weight_decay)


def sgd_cm(
    params: ParamsT, lr: float | Tensor = 0.1, beta: float = 0.9, weight_decay: float = 0.0
) -> Optimizer:
    return Momentum(params, lr, beta, 1.0, weight_decay)


# --- pytorch_optimizer ----------------------------------------------------------------------------


def msvag(
    params: ParamsT,
    lr: float = 0.1,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """The paper's tables give M-SVAG two betas and an eps: it uses the first beta alone.

    The class has no weight decay.
    """
    from pytorch_optimizer import MSVAG

    require(weight_decay >= 0.0, "weight_decay value", weight_decay)
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


def adabound(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    final_lr: float = 0.1,
    gamma: float = 1e-3,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """L2 weight decay, as in the authors' class; `final_lr` follows the schedule of lr."""
    from pytorch_optimizer import AdaBound

    return AdaBound(
        params, lr, final_lr, betas, gamma, weight_decay, weight_decouple=False, eps=eps
    )


def adabelief(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """For CIFAR: L2 weight decay, no rectification, and eps 1e-8 where the class has 1e-16."""
    from pytorch_optimizer import AdaBelief

    return AdaBelief(params, lr, betas, weight_decay, weight_decouple=False, eps=eps)


def yogi(
    params: ParamsT,
    lr: float = 1e-2,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-3,
    initial_accumulator: float = 1e-6,
    weight_decay: float = 0.0,
) -> Optimizer:
    """L2 weight decay; the rest are the class's defaults, which are the publication's."""
    from pytorch_optimizer import Yogi

    return Yogi(
        params, lr, betas, initial_accumulator, weight_decay, weight_decouple=False, eps=eps
    )


def padam(
    params: ParamsT,
    lr: float = 0.1,
    betas: Betas = (0.9, 0.999),
    partial: float = 0.125,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """L2 weight decay; the power 1/8 of the publication, where the class has 1/4."""
    from pytorch_optimizer import PAdam

    return PAdam(params, lr, betas, partial, weight_decay, weight_decouple=False, eps=eps)


def fromage(params: ParamsT, lr: float | Tensor = 1e-2) -> Optimizer:
    """No weight decay: the publication has none."""
    from pytorch_optimizer import Fromage

    return Fromage(params, lr)


def lion(
    params: ParamsT,
    lr: float | Tensor = 1e-4,
    betas: Betas = (0.9, 0.99),
    weight_decay: float = 0.0,
) -> Optimizer:
    """Decoupled weight decay, as published."""
    from pytorch_optimizer import Lion

    return Lion(params, lr, betas, weight_decay, weight_decouple=True)

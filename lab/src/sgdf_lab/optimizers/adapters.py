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

    require(final_lr > 0.0, "final_lr value", final_lr)
    return AdaBound(
        params, lr, final_lr, betas, gamma, weight_decay, weight_decouple=False, eps=eps
    )


def adabelief(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
) -> Optimizer:
    """For CIFAR: L2 weight decay, no rectification, and eps 1e-8 where the class has 1e-16."""
    from pytorch_optimizer import AdaBelief

    decoupled = decoupled_weight_decay
    return AdaBelief(params, lr, betas, weight_decay, weight_decouple=decoupled, eps=eps)


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

    require(initial_accumulator >= 0.0, "initial_accumulator value", initial_accumulator)
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


def cautious_lion(
    params: ParamsT,
    lr: float | Tensor = 1e-4,
    betas: Betas = (0.9, 0.99),
    weight_decay: float = 0.0,
) -> Optimizer:
    """Lion that skips the coordinates in which its update and the gradient disagree."""
    from pytorch_optimizer import Lion

    return Lion(params, lr, betas, weight_decay, weight_decouple=True, cautious=True)


def soap(
    params: ParamsT,
    lr: float = 3e-3,
    betas: Betas = (0.95, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10000,
) -> Optimizer:
    """Decoupled weight decay. The first step only starts the preconditioner."""
    from pytorch_optimizer import SOAP

    return SOAP(
        params,
        lr,
        betas,
        None,
        weight_decay,
        precondition_frequency,
        max_precondition_dim,
        eps=eps,
    )


def shampoo(
    params: ParamsT,
    lr: float = 0.1,
    matrix_eps: float = 1e-6,
    weight_decay: float = 0.0,
    preconditioning_compute_steps: int = 1,
) -> Optimizer:
    """The first publication's, for small layers: a full matrix for every dimension.

    The package's scalable form keeps objects in its state, which checkpoints cannot hold. Its
    momentum mixes gradients with preconditioned ones: it is left out.
    """
    from pytorch_optimizer import Shampoo

    require(matrix_eps > 0.0, "matrix_eps value", matrix_eps)
    return Shampoo(
        params,
        lr,
        weight_decay=weight_decay,
        preconditioning_compute_steps=preconditioning_compute_steps,
        matrix_eps=matrix_eps,
    )


def schedule_free_sgd(
    params: ParamsT,
    lr: float = 1.0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
) -> Optimizer:
    """L2 weight decay at the training weights, as published."""
    from pytorch_optimizer import ScheduleFreeSGD

    require(warmup_steps >= 0, "warmup_steps value", warmup_steps)
    return ScheduleFreeSGD(params, lr, momentum, weight_decay, warmup_steps=warmup_steps)


def schedule_free_adamw(
    params: ParamsT,
    lr: float = 2.5e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
) -> Optimizer:
    """Weight decay at the training weights, not divided by the root of the second moment."""
    from pytorch_optimizer import ScheduleFreeAdamW

    require(warmup_steps >= 0, "warmup_steps value", warmup_steps)
    return ScheduleFreeAdamW(params, lr, betas, weight_decay, warmup_steps=warmup_steps, eps=eps)


def ademamix(
    params: ParamsT,
    lr: float = 1e-3,
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
    lr: float = 3e-3,
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


def adopt(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.9999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Decoupled weight decay. The first step only starts the second moment.

    As in the authors' code, the clip counts the steps after that one.
    """
    from pytorch_optimizer import ADOPT

    return ADOPT(
        params,
        lr,
        betas,
        clip_lambda=lambda step: (step - 1) ** 0.25,
        weight_decay=weight_decay,
        weight_decouple=True,
        eps=eps,
    )


def laprop(
    params: ParamsT,
    lr: float = 4e-4,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-15,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Decoupled weight decay."""
    from pytorch_optimizer import LaProp

    return LaProp(params, lr, betas, weight_decay=weight_decay, weight_decouple=True, eps=eps)


def adan(
    params: ParamsT,
    lr: float = 1e-3,
    betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """The published (proximal) weight decay, which the class calls not decoupled."""
    from pytorch_optimizer import Adan

    return Adan(params, lr, betas, weight_decay, weight_decouple=False, eps=eps)


def prodigy(
    params: ParamsT,
    lr: float = 1.0,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    d0: float = 1e-6,
    d_coef: float = 1.0,
) -> Optimizer:
    """Decoupled weight decay. It finds the scale of its steps: lr stays 1, times the schedule."""
    from pytorch_optimizer import Prodigy

    require(d0 > 0.0, "d0 value", d0)
    return Prodigy(params, lr, betas, d0=d0, d_coef=d_coef, weight_decay=weight_decay, eps=eps)


def grokfast_adamw(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.99),
    grokfast_alpha: float = 0.98,
    grokfast_lamb: float = 2.0,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Decoupled weight decay; lr is used as given, not divided by ``1 + grokfast_lamb``."""
    from pytorch_optimizer import GrokFastAdamW

    return GrokFastAdamW(
        params,
        lr,
        betas,
        grokfast_alpha=grokfast_alpha,
        grokfast_lamb=grokfast_lamb,
        weight_decay=weight_decay,
        normalize_lr=False,
        eps=eps,
    )

"""The optimizers of the lab, one row each."""

from functools import partial

import torch

from sgdf import SGDF, FilterAdam, FilterAdamW
from sgdf.lab.optimizers import adapters
from sgdf.lab.optimizers.eadam import EAdam
from sgdf.lab.optimizers.row import OptimizerRow
from sgdf.lab.optimizers.sophia import SophiaG
from sgdf.support.palette import (
    BLACK,
    BLUE,
    BROWN,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Look,
    spare_look,
)

CAPTURABLE = {"capturable": True}
FUSED = {"fused": True}

_ROWS = (
    OptimizerRow(
        name="sgdf",
        builder=SGDF,
        about="SGD along the Wiener-filtered gradient",
        source="sgdf",
        colour=VERMILION,
        dash="solid",
        on_cuda=CAPTURABLE,
    ),
    OptimizerRow(
        name="filter-adam",
        builder=FilterAdam,
        about="Adam with the filtered gradient",
        source="sgdf",
        colour=VERMILION,
        dash="dash",
        on_cuda=CAPTURABLE,
    ),
    OptimizerRow(
        name="filter-adamw",
        builder=FilterAdamW,
        about="AdamW with the filtered gradient",
        source="sgdf",
        colour=VERMILION,
        dash="longdash",
        on_cuda=CAPTURABLE,
    ),
    OptimizerRow(
        name="sgd",
        builder=partial(torch.optim.SGD, lr=0.1, momentum=0.9),  # the paper's tables call it SGD
        about="SGD with momentum 0.9",
        source="torch",
        colour=BLUE,
        dash="dash",
        on_cuda=FUSED,
    ),
    OptimizerRow(
        name="sgd-ema",
        builder=adapters.sgd_ema,
        about="SGD along a moving average of the gradient",
        source="sgdf",
        colour=PURPLE,
        dash="dot",
    ),
    OptimizerRow(
        name="sgd-cm",
        builder=adapters.sgd_cm,
        about="SGD with classical momentum, as the paper defines it",
        source="sgdf",
        colour=SKY,
        dash="dashdot",
    ),
    OptimizerRow(
        name="adam",
        builder=torch.optim.Adam,
        about="Adam, L2 weight decay",
        source="torch",
        colour=GREEN,
        dash="dot",
        on_cuda=FUSED | CAPTURABLE,
    ),
    OptimizerRow(
        name="adamw",
        builder=torch.optim.AdamW,
        about="Adam, decoupled weight decay",
        source="torch",
        colour=GREEN,
        dash="longdash",
        on_cuda=FUSED | CAPTURABLE,
    ),
    OptimizerRow(
        name="radam",
        builder=torch.optim.RAdam,
        about="rectified Adam, L2 weight decay",
        source="torch",
        colour=GREEN,
        dash="dashdot",
        on_cuda=CAPTURABLE | {"foreach": True},
    ),
    OptimizerRow(
        name="rmsprop",
        builder=torch.optim.RMSprop,
        about="gradient over its root mean square",
        source="torch",
        colour=GREY,
        dash="solid",
        on_cuda=CAPTURABLE | {"foreach": True},
    ),
    OptimizerRow(
        name="msvag",
        builder=adapters.msvag,
        about="momentum damped by the gradient's variance",
        source="pytorch_optimizer",
        colour=ORANGE,
        dash="dashdot",
        capturable=False,
    ),
    OptimizerRow(
        name="adabound",
        builder=adapters.adabound,
        about="Adam with bounds that close on SGD",
        source="pytorch_optimizer",
        colour=SKY,
        dash="solid",
        capturable=False,
    ),
    OptimizerRow(
        name="adabelief",
        builder=adapters.adabelief,
        about="Adam by the variance about the trend",
        source="pytorch_optimizer",
        colour=PURPLE,
        dash="longdash",
        capturable=False,
    ),
    OptimizerRow(
        name="yogi",
        builder=adapters.yogi,
        about="Adam with an additive second moment (with Adam's bias correction, which the paper "
        "lacks)",
        source="pytorch_optimizer",
        colour=PURPLE,
        dash="dashdot",
        capturable=False,
    ),
    OptimizerRow(
        name="padam",
        builder=adapters.padam,
        about="partially adaptive Adam (without the paper's running maximum, AMSGrad)",
        source="pytorch_optimizer",
        colour=ORANGE,
        dash="dash",
        capturable=False,
    ),
    OptimizerRow(
        name="fromage",
        builder=adapters.fromage,
        about="steps in proportion to the weights",
        source="pytorch_optimizer",
        colour=GREY,
        dash="dash",
    ),
    OptimizerRow(
        name="lion",
        builder=adapters.lion,
        about="the sign of an interpolated momentum",
        source="pytorch_optimizer",
        colour=BROWN,
        dash="dash",
    ),
    OptimizerRow(
        name="eadam",
        builder=EAdam,
        about="Adam with eps summed in the second moment",
        source="sgdf",
        colour=SKY,
        dash="dash",
        on_cuda=CAPTURABLE,
    ),
    OptimizerRow(
        name="sophia-g",
        builder=SophiaG,
        about="momentum over a diagonal of the curvature, clipped",
        source="sgdf",
        colour=BLACK,
        dash="dot",
        needs_hessian=True,
    ),
)
OPTIMIZERS = {row.name: row for row in _ROWS}


def style(name: str) -> Look:
    """The colour and dash of an optimizer's curves; for an unknown name always the same ones."""
    row = OPTIMIZERS.get(name)
    return Look(row.colour, row.dash) if row else spare_look(name)

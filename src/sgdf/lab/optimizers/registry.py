"""The optimizers of the lab, one row each: how it is built, set, drawn and trained with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from sgdf import SGDF, FilterAdam, FilterAdamW
from sgdf.lab.optimizers import adapters, annotations
from sgdf.lab.optimizers.eadam import EAdam
from sgdf.lab.optimizers.sophia import SophiaG
from sgdf.support.errors import unknown
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


@dataclass(frozen=True, kw_only=True)
class OptimizerRow:
    """An optimizer of the lab.

    Args:
        name: for --optimizer and in the names of runs.
        builder: a class or function; its arguments after the parameters are the settings.
        about: what it does, in a phrase.
        source: the package that its class comes from.
        colour, dash: of its curves, the dash from `palette.DASHES`; related optimizers share one
            of the two, never both.
        settings: defaults for training with it where the paper has none; needs `lr` at least.
        capturable: a CUDA graph can hold step(), with lr a tensor on the device.
        on_cuda: settings for a CUDA device.
        needs_hessian: is a `HessianOptimizer`.
        any_setting: accepts settings under any name.
    """

    name: str
    builder: Callable[..., Optimizer]
    about: str
    source: str
    colour: str
    dash: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    capturable: bool = True
    on_cuda: Mapping[str, Any] = field(default_factory=dict)
    needs_hessian: bool = False
    any_setting: bool = False

    @property
    def setting_names(self) -> tuple[str, ...]:
        return setting_names(self.builder)

    def checked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings as a run records them; refuses wrong names, and values of a wrong type."""
        for setting in settings:
            if setting not in self.setting_names and not self.any_setting:
                raise unknown(f"setting of {self.name}", setting, self.setting_names)
        if self.any_setting or self.name not in OPTIMIZERS:  # annotations of others may be wrong
            return dict(settings)
        kinds = annotations.of(self.builder)
        return {name: annotations.checked(name, v, kinds[name]) for name, v in settings.items()}


class HessianOptimizer(Protocol):
    """An optimizer that needs a second backward pass now and then, as SophiaG describes."""

    hessian_every: int  # steps between two calls of update_hessian; 0: never

    def update_hessian(self, batch_size: int) -> None: ...


def setting_names(builder: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(annotations.of(builder))


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

"""Optimizers by name."""

from sgdf.lab.optimizers.lookup import build_optimizer, find
from sgdf.lab.optimizers.modes import set_mode
from sgdf.lab.optimizers.registry import OPTIMIZERS, style
from sgdf.lab.optimizers.row import HessianOptimizer, OptimizerRow

__all__ = [
    "OPTIMIZERS",
    "HessianOptimizer",
    "OptimizerRow",
    "build_optimizer",
    "find",
    "set_mode",
    "style",
]

"""Optimizers by name."""

from sgdf_lab.optimizers.lookup import build_optimizer, find
from sgdf_lab.optimizers.modes import set_mode
from sgdf_lab.optimizers.registry import OPTIMIZERS, style
from sgdf_lab.optimizers.row import HessianOptimizer, OptimizerRow

__all__ = [
    "OPTIMIZERS",
    "HessianOptimizer",
    "OptimizerRow",
    "build_optimizer",
    "find",
    "set_mode",
    "style",
]

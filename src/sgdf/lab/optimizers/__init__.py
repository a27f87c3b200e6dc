"""Optimizers by name."""

from sgdf.lab.optimizers.lookup import build_optimizer, find
from sgdf.lab.optimizers.registry import (
    OPTIMIZERS,
    HessianOptimizer,
    OptimizerRow,
    style,
)

__all__ = [
    "OPTIMIZERS",
    "HessianOptimizer",
    "OptimizerRow",
    "build_optimizer",
    "find",
    "style",
]

"""Optimizers by name."""

from sgdf.lab.optimizers.lookup import build_optimizer, find
from sgdf.lab.optimizers.registry import (
    DASHES,
    OPTIMIZERS,
    HessianOptimizer,
    OptimizerRow,
    style,
)

__all__ = [
    "DASHES",
    "OPTIMIZERS",
    "HessianOptimizer",
    "OptimizerRow",
    "build_optimizer",
    "find",
    "style",
]

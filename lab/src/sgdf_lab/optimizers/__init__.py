"""Optimizers by name. The table is `sgdf_lab.registry.optimizers`; building one imports torch."""

from typing import TYPE_CHECKING, Any

from sgdf_lab.registry.optimizers import OPTIMIZERS, OptimizerRow, find, style, title_of

if TYPE_CHECKING:
    from sgdf_lab.optimizers.build import HessianOptimizer, build_optimizer, set_mode

__all__ = [
    "OPTIMIZERS",
    "HessianOptimizer",
    "OptimizerRow",
    "build_optimizer",
    "find",
    "set_mode",
    "style",
    "title_of",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sgdf_lab.optimizers import build

    return getattr(build, name)

"""SGDF: stochastic gradient descent with a Wiener filter instead of momentum."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgdf.optim import (
        SGDF,
        FilterAdam,
        FilterAdamW,
        FilterMuon,
        FilterSOAP,
        Momentum,
        WienerFilter,
        param_groups,
        step_in_backward,
    )

__version__ = "0.2.0"
__all__ = [
    "SGDF",
    "FilterAdam",
    "FilterAdamW",
    "FilterMuon",
    "FilterSOAP",
    "Momentum",
    "WienerFilter",
    "param_groups",
    "step_in_backward",
]

_ROOMS = ("filter", "kernels", "matrix", "optim")


def __getattr__(name: str) -> Any:
    """Import torch with the first optimizer that is used: `sgdf --help` answers without it."""
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(importlib.import_module("sgdf.optim"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})

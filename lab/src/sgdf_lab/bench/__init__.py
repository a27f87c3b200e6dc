"""What a step of an optimizer costs in time and memory, beside SGD and AdamW.

The command `sgdf bench step --device cpu --lists resnet18` is in Python

    from sgdf_lab import bench
    record = bench.step(device="cpu", lists=["resnet18"])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgdf_lab.bench.run import step

__all__ = ["step"]


def __getattr__(name: str) -> Any:
    if name != "step":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sgdf_lab.bench.run import step

    return step

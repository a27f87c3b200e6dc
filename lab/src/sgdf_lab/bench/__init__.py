"""What a step of an optimizer costs in time and memory, beside SGD and AdamW.

The command `sgdf bench step --device cpu --lists resnet18` is in Python

    from sgdf_lab import bench
    record = bench.step(device="cpu", lists=["resnet18"])
"""

from sgdf_lab.bench.run import step

__all__ = ["step"]

"""An optimizer's state from a checkpoint, on any device and for any number of processes."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from sgdf.lab.train.distributed import scattered

# Settings that the live optimizer keeps: how it runs on this device, not what it computes.
LIVE_SETTINGS = ("lr", "foreach", "fused", "capturable", "differentiable")


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any], *, lr: Tensor | float) -> None:
    """Load a state dict, keep the live settings, and let every group read `lr`."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        i: {key: scattered(value, params[i]) for key, value in moments.items()}
        for i, moments in saved["state"].items()
    }
    groups = [
        {**old, **{name: live[name] for name in LIVE_SETTINGS if name in live}}
        for old, live in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**saved, "state": state, "param_groups": groups})
    for group in optimizer.param_groups:
        group["lr"] = lr  # a tensor that captured steps read, or a number

"""What can be trained. The table is `sgdf_lab.registry.tasks`; here are the trainers, and what most
of them do first. Imports no torch by itself.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from sgdf_lab.registry.tasks import TASKS, Metric, Task, find
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    import torch

    from sgdf_lab.runs.config import Config

__all__ = ["TASKS", "Metric", "Task", "find"]

Model = TypeVar("Model", bound="torch.nn.Module")


def check_integers(config: "Config", **least: int) -> None:
    """Refuse options that are not integers of at least these."""
    for name, smallest in least.items():
        value = config.option(name)
        if type(value) is not int or value < smallest:
            raise UserError(f"{name} is an integer of at least {smallest}, not {value!r}")


@contextlib.contextmanager
def weights_by_seed(config: "Config") -> Iterator[None]:
    """Draw weights by the run's seed; torch's own random numbers are left alone."""
    import torch

    from sgdf_lab.training.batches import seed_for

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", config.seed))
        yield


def channels_last(model: Model, device: "torch.device") -> Model:
    """On the device, in the memory layout that convolutions are fastest in."""
    import torch

    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

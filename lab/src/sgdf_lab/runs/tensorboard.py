"""Metrics for TensorBoard: `tensorboard --logdir runs`."""

from pathlib import Path
from typing import Any

from sgdf_lab.support.errors import UserError


class EventWriter:
    """Writes event files into the run's folder; those of steps after `done` are dropped."""

    def __init__(self, folder: Path, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError('--tensorboard needs pip install "sgdf-lab[tensorboard]"') from None
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        for name, value in {**metrics, "seconds": times["seconds"]}.items():
            if isinstance(value, float):
                self.writer.add_scalar(
                    name.replace("_", "/", 1), value, metrics.get("step", metrics["epoch"])
                )
        self.writer.flush()

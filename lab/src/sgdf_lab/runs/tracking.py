"""Metrics for the programs in which people look at them: TensorBoard, and Weights & Biases."""

import os
from pathlib import Path
from typing import Any, Protocol

from sgdf_lab.runs.config import Config
from sgdf_lab.support.errors import UserError


class Tracker(Protocol):
    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        """The metrics of an epoch, or of the steps up to an evaluation."""

    def close(self) -> None:
        """Write what is not written yet."""


def named_values(metrics: dict[str, Any], times: dict[str, Any]) -> dict[str, float]:
    """
    >>> named_values({"epoch": 1, "test_loss": 0.5, "note": None}, {"seconds": 2.0})
    {'test/loss': 0.5, 'seconds': 2.0}
    """
    values = {**metrics, "seconds": times["seconds"]}.items()
    return {name.replace("_", "/", 1): value for name, value in values if isinstance(value, float)}


class EventWriter:
    """TensorBoard: event files in the run's folder; those of steps after `done` are dropped."""

    def __init__(self, folder: Path, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError('--tensorboard needs pip install "sgdf-lab[tensorboard]"') from None
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        for name, value in named_values(metrics, times).items():
            self.writer.add_scalar(name, value, metrics.get("step", metrics["epoch"]))
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbWriter:
    """Weights & Biases: offline, in the run's folder, unless WANDB_MODE says otherwise.

    `wandb sync` sends it later. A run that is resumed writes a part of its own with the same id.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError('--wandb needs pip install "sgdf-lab[wandb]"') from None
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "sgdf"),
            name=config.name,
            id=config.name,
            resume="allow",
            config=config.as_json(),
            dir=folder,
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            reinit="create_new",  # runs may be trained side by side
            settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True),
        )

    def add(self, metrics: dict[str, Any], times: dict[str, Any]) -> None:
        step = metrics.get("step", metrics["epoch"])
        self.run.log(named_values(metrics, times), step=step, commit=True)

    def close(self) -> None:
        self.run.finish()

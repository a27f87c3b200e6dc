"""The trainer for a run: every kind of task has a module of its own, imported when it is asked for.

Such a module has `build` and `check` as below, without the choice.
"""

import importlib
from pathlib import Path
from types import ModuleType

import torch

from sgdf.lab import tasks
from sgdf.lab.runs.config import Config
from sgdf.lab.train.distributed import ALONE, Team
from sgdf.lab.train.loop import Trainer
from sgdf.support.errors import UserError

MODULES = {
    "classify": "classify",
    "vision": "photos",
    "detect": "detect.detector",
    "gan": "gan.wgan_gp",
}


def build(
    config: Config,
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = ALONE,
) -> Trainer:
    """The run's model, data and optimizer; what is wrong with any of them is said here."""
    made: Trainer = module_of(config).build(
        config, device, data_dir=data_dir, compile=compile, team=team
    )
    return made


def check(config: Config, data_dir: Path | None) -> None:
    """Whether the data is there, as far as can be told quickly."""
    module_of(config).check(config, data_dir)


def module_of(config: Config) -> ModuleType:
    kind = MODULES[tasks.find(config.task).kind]
    try:
        return importlib.import_module(f"sgdf.lab.tasks.{kind}")
    except ModuleNotFoundError as error:
        raise UserError(f'{config.task} needs {error.name}: pip install "sgdf[vision]"') from None

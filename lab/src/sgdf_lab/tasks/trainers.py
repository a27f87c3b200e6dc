"""The trainer of a run, from the module that its task names; imported when a run begins."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from sgdf_lab.support.errors import UserError
from sgdf_lab.train.distributed import ALONE, Team
from sgdf_lab.train.loop import Trainer

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = ALONE,
) -> Trainer:
    """The run's model, data and optimizer; a `UserError` says what is wrong with any of them."""
    trainer: Trainer = module_of(config).build_trainer(
        config, device, data_dir=data_dir, compile=compile, team=team
    )
    return trainer


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if data or weights are missing, as far as can be told quickly."""
    module_of(config).check(config, data_dir)


def module_of(config: "Config") -> ModuleType:
    try:
        return importlib.import_module(config.task_definition.trainer)
    except ModuleNotFoundError as error:
        raise UserError(
            f'{config.task} needs {error.name}: pip install "sgdf-lab[vision]"'
        ) from None

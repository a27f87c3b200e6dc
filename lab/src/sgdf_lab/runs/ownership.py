"""Whose a checkpoint is: the run's name, a hash of its settings, and its data.

Checkpoints of earlier versions do not say it; of those, what can be checked is checked.
"""

import re
from collections.abc import Mapping
from typing import Any

from sgdf_lab.runs.config import Config
from sgdf_lab.support.numbers import is_number
from sgdf_lab.train.checkpoints import DamagedCheckpoint, check_layout

LISTS = ("metrics", "times")  # in a checkpoint: a line for every epoch


class ForeignCheckpoint(Exception):
    """A checkpoint that another run wrote."""


def owner(config: Config, data: str) -> dict[str, str]:
    """What a checkpoint says about its run; `data` is empty if nothing identifies the data."""
    return {"name": config.name, "config": config.digest, "data": data}


def check_owner(checkpoint: Mapping[str, Any], config: Config, data: str) -> None:
    """Raise `ForeignCheckpoint` if another run wrote it."""
    if "run" not in checkpoint:
        return
    wrote, own = checkpoint["run"], owner(config, data)
    if not isinstance(wrote, Mapping) or not all(isinstance(wrote.get(key), str) for key in own):
        raise DamagedCheckpoint("it does not say which run wrote it")
    if wrote["name"] != own["name"]:
        is_name = re.fullmatch(r"[\w.-]{1,255}", wrote["name"])
        whose = f"run {wrote['name']}" if is_name else "another run"
        raise ForeignCheckpoint(f"belongs to {whose}")
    if wrote["config"] != own["config"]:
        raise ForeignCheckpoint("belongs to a run with other settings")
    if wrote["data"] and data and wrote["data"] != data:
        raise ForeignCheckpoint("belongs to a run on other data")


def check_contents(checkpoint: Mapping[str, Any], config: Config) -> None:
    """Raise `DamagedCheckpoint` unless its lists are those of its epoch, and nothing is missing."""
    if "run" in checkpoint:
        state = {k: v for k, v in checkpoint.items() if k not in ("run", "layout", *LISTS)}
        check_layout(state, checkpoint.get("layout"))
    for name in LISTS:
        if not isinstance(checkpoint[name], list) or len(checkpoint[name]) != checkpoint["epoch"]:
            raise DamagedCheckpoint(f"its {name} are not those of {checkpoint['epoch']} epochs")
    metric = config.task_definition.metric
    lines = zip(checkpoint["metrics"], checkpoint["times"], strict=True)
    for epoch, (metrics, times) in enumerate(lines, start=1):
        if not is_line(metrics, epoch) or not is_line(times, epoch):
            raise DamagedCheckpoint(f"its lines of epoch {epoch} are damaged")
        if metric.key not in metrics or times.get("seconds") is None:
            raise DamagedCheckpoint(f"its lines of epoch {epoch} are not those of this task")


def is_line(line: Any, epoch: int) -> bool:
    """Whether it has the results of an epoch: numbers, truth values or nothing, by name."""
    return (
        isinstance(line, dict)
        and line.get("epoch") == epoch
        and all(v is None or isinstance(v, bool) or is_number(v) for v in line.values())
    )

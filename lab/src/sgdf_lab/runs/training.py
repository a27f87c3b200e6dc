"""Train runs from Python or the command line: side by side on a GPU, else one after another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sgdf_lab.runs import session
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.session import RunContext
from sgdf_lab.train.distributed import ALONE, Team


def train_runs(
    configs: Sequence[Config],
    *,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    device: str | torch.device | None = None,
    keep: int | None = None,
    compile: bool = True,
) -> list[dict[str, Any]]:
    """Train the runs to their end, or resume them, and return their results.

    Args:
        configs: of `make_config`.
        out: a folder; every run has its own in it, with the name `config.name`.
        data_dir: where the data is.
        device: default: cuda if available.
        keep: keep the weights of every Nth epoch.
        compile: on a GPU; without, a run starts at once, but trains slower.

    Returns:
        The content of `result.json` of each run.

    Examples:
        >>> from sgdf_lab import make_config, train_runs
        >>> config = make_config("digits", epochs=2)
        >>> results = train_runs([config], out="runs", device="cpu")  # doctest: +SKIP
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    context = RunContext(
        out=Path(out),
        device=torch.device(device),
        data_dir=None if data_dir is None else Path(data_dir),
        compile=compile,
        keep=keep,
    )
    return train_in(context, configs)


def train_in(
    context: RunContext, configs: Sequence[Config], team: Team = ALONE
) -> list[dict[str, Any]]:
    """A GPU has room for several runs at once; a CPU or a team has not."""
    side_by_side = context.device.type == "cuda" and team.size == 1
    results: list[dict[str, Any]] = []
    for group in [configs] if side_by_side else [[config] for config in configs]:
        results += session.train(group, context, team=team)
    return results

"""The paper's tables and figures as sweeps: every cell with every seed."""

from collections.abc import Mapping, Sequence
from typing import Any

from sgdf_lab import paper
from sgdf_lab.runs import config as configs
from sgdf_lab.support.errors import unknown
from sgdf_lab.sweeps.plan import Sweep, check_count


def sweep_from_paper(
    name: str,
    *,
    only: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    epochs: int | None = None,
    precision: str = "tf32",
    data: str = "real",
    overrides: Mapping[str, Any] | None = None,
) -> Sweep:
    """A preset as published, unless an argument changes it.

    Args:
        name: one of `paper.PRESETS`.
        only: these optimizers alone.
        seeds, epochs: instead of the published ones.
        precision, data: as in `sgdf train`.
        overrides: settings for all of its runs; they override those of a cell.
    """
    preset = paper.preset(name)
    names = {cell.optimizer for cell in preset.cells}
    for optimizer in only or ():
        if optimizer not in names:
            raise unknown(f"optimizer in {preset.name}:", optimizer, names)
    cells = [cell for cell in preset.cells if not only or cell.optimizer in only]
    seeds = seeds or preset.seeds
    check_count(len(cells), len(seeds))
    norms = {"norms": True} if preset.track_norms else {}
    planned = tuple(
        configs.make(
            cell.task,
            model=cell.model,
            optimizer=cell.optimizer,
            seed=seed,
            epochs=epochs or preset.epochs,
            precision=precision,
            data=data,
            overrides={**cell.overrides, **(overrides or {}), **norms},
        )
        for cell in cells
        for seed in seeds
    )
    return Sweep(preset.name, preset.title, planned, preset.note)

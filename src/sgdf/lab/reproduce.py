"""The paper's tables and figures as sweeps: every cell with every seed."""

import argparse

from sgdf.lab import config as configs
from sgdf.lab import paper
from sgdf.lab.config import Config
from sgdf.lab.errors import unknown
from sgdf.lab.paper import Cell, Preset
from sgdf.lab.sweep import Sweep


def sweep_from(options: argparse.Namespace) -> Sweep:
    """The preset, or what is asked of it."""
    preset = paper.preset(options.name)
    names = {cell.optimizer for cell in preset.cells}
    for name in options.only or ():
        if name not in names:
            raise unknown(f"optimizer in {preset.name}:", name, names)
    made = tuple(
        config_of(preset, cell, seed, options)
        for cell in preset.cells
        if not options.only or cell.optimizer in options.only
        for seed in options.seeds or preset.seeds
    )
    return Sweep(preset.name, preset.title, made, preset.note)


def show_presets() -> None:
    """What can be asked for, and how much of it there is."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title="sgdf reproduce NAME: the paper's tables and figures")
    for column in ("name", "what"):
        shown.add_column(column)
    for column in ("settings", "seeds", "epochs"):
        shown.add_column(column, justify="right")
    for preset in paper.PRESETS.values():
        counts = len(preset.cells), len(preset.seeds), preset.epochs
        shown.add_row(preset.name, preset.title, *map(str, counts))
    Console().print(shown)


def config_of(preset: Preset, cell: Cell, seed: int, options: argparse.Namespace) -> Config:
    overrides = {**cell.overrides, **dict(map(configs.parse_setting, options.set))}
    if preset.track_norms:
        overrides["norms"] = True
    return configs.make(
        cell.task,
        model=cell.model,
        optimizer=cell.optimizer,
        seed=seed,
        epochs=options.epochs or preset.epochs,
        precision=options.precision,
        data=options.data,
        overrides=overrides,
    )

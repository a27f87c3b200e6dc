"""`sgdf demo`: compare four optimizers on handwritten digits."""

import argparse
from pathlib import Path

from sgdf_lab.cli.options import Commands, add_run_options, add_sweep_options, positive


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("demo", help="compare four optimizers on handwritten digits")
    parser.add_argument("--epochs", type=positive, default=None, help="epochs per run (default 20)")
    add_sweep_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=run, out=Path("runs", "demo"))


def run(options: argparse.Namespace) -> None:
    from sgdf_lab.cli import comparison
    from sgdf_lab.sweeps import demo

    comparison.run(demo.demo_sweep(options.epochs or demo.EPOCHS), options)

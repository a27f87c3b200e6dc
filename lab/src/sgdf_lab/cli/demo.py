"""`sgdf demo`: a small GPT learns to write Python, by several optimizers; or handwritten digits."""

import argparse
from pathlib import Path

from sgdf_lab.cli.options import Commands, add_run_options, add_sweep_options, positive
from sgdf_lab.support.errors import UserError


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="a small GPT learns to write Python, by several optimizers",
        description="Train a small GPT on the source of Python's standard library by several\n"
        "optimizers, and show their losses, steps, time, memory, and what the models write.",
    )
    parser.add_argument("--steps", type=positive, help="steps per run (default 150)")
    parser.add_argument(
        "--digits", action="store_true", help="compare four on handwritten digits instead"
    )
    parser.add_argument("--epochs", type=positive, help="epochs per run of --digits (default 20)")
    add_sweep_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=run, out=Path("runs", "demo"))


def run(options: argparse.Namespace) -> None:
    from sgdf_lab.cli import comparison
    from sgdf_lab.reports import demo as report
    from sgdf_lab.sweeps import demo

    if options.digits:
        if options.steps:
            raise UserError("--steps is of the GPT; the digits are trained by --epochs")
        comparison.run(demo.digits_sweep(options.epochs or demo.EPOCHS), options)
        return
    if options.epochs:
        raise UserError("--epochs is of the digits: add --digits, or give --steps")
    if options.no_checkpoints:
        raise UserError("the demo shows what its models write: leave --no-checkpoints out")
    corpus = demo.write_corpus(options.out / "stdlib.txt")
    sweep = demo.gpt_sweep(corpus, options.steps or demo.STEPS)
    comparison.run(sweep, options, report.show)

"""The command line: `sgdf COMMAND`. Heavy imports wait until their command runs."""

import argparse
import difflib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sgdf import __version__, report, theory
from sgdf.lab import arguments, bench, data, sweep  # these need no more than sgdf itself does
from sgdf.lab.errors import LabError
from sgdf.report import analyze, analyze_gradients


class Parser(argparse.ArgumentParser):
    """Answers a wrong name with the near ones."""

    def error(self, message: str) -> NoReturn:
        wrong, _, choices = message.partition("(choose from ")
        if choices:
            known = [choice.strip(" '\")") for choice in choices.split(",")]
            near = difflib.get_close_matches(wrong.rsplit(":", 1)[-1].strip(" '\""), known)
            message = f"{wrong.strip()}: did you mean {' or '.join(near)}?" if near else message
        super().error(message)


def leave(code: int) -> NoReturn:
    """End the process; of several at once, when all is written.

    Threads of gloo may still run when Python ends in order, and abort it then: now and then
    torchrun would call a finished run failed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a failure is one sentence, with the traceback behind --debug."""
    parser = Parser(prog="sgdf", description="SGD with a Wiener filter in the place of momentum")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    demo = commands.add_parser("demo", help="compare four optimizers on handwritten digits")
    demo.add_argument("--epochs", type=_positive, default=None, help="epochs per run (default 20)")
    arguments.add_engine(demo, _positive)
    arguments.add_place(demo, _positive)
    demo.set_defaults(run=_demo, out=Path("runs", "demo"))

    benches = commands.add_parser("bench", help="measure what the optimizers cost")
    subjects = benches.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    step = subjects.add_parser("step", help="time and memory of one step, beside SGD and AdamW")
    bench.add_arguments(step, _positive)
    step.set_defaults(run=_bench_step)

    train = commands.add_parser("train", help="train a model on a task; a killed run goes on")
    arguments.add_train(train, _positive)
    train.set_defaults(run=_train)

    reproduce = commands.add_parser("reproduce", help="run a table or figure of the paper again")
    arguments.add_reproduce(reproduce, _positive)
    reproduce.set_defaults(run=_reproduce)

    sweeps = commands.add_parser("sweep", help="run a grid of settings and seeds, here or on Ray")
    sweep.add_arguments(sweeps, _positive)
    sweeps.set_defaults(run=_sweep)

    reports = commands.add_parser("report", help="tables and one page of curves from finished runs")
    report.add_arguments(reports)
    reports.set_defaults(run=report.run)

    analyses = commands.add_parser("analyze", help="Hessian, landscape and gradients of a model")
    instruments = analyses.add_subparsers(dest="what", metavar="WHAT", required=True)
    analyze.add_arguments(instruments)
    analyze_gradients.add_arguments(instruments)

    theories = commands.add_parser("theory", help="check the paper's statements by simulation")
    theory.add_arguments(theories)
    theories.set_defaults(run=theory.run)

    datasets = commands.add_parser("data", help="the data sets: what is here, and getting them")
    data.add_commands(datasets.add_subparsers(dest="what", metavar="WHAT", required=True))

    options = parser.parse_args(argv)
    options.typed = shlex.join(["sgdf", *(sys.argv[1:] if argv is None else argv)])
    try:
        options.run(options)
    except KeyboardInterrupt as interrupt:
        print(f"sgdf: {str(interrupt) or 'stopped'}", file=sys.stderr)
        return 130
    except Exception as error:
        if options.debug:
            raise
        print(f"sgdf: {_sentence(error)}", file=sys.stderr)
        return 1
    return 0


def _demo(options: argparse.Namespace) -> None:
    from sgdf.lab import demo
    from sgdf.report import comparison

    comparison.run(demo.sweep(options.epochs or demo.EPOCHS), options)


def _sweep(options: argparse.Namespace) -> None:
    planned = sweep.sweep_from(options)
    if options.list:
        print(*map(sweep.line_of, planned.configs), sep="\n")
        return
    from sgdf.report import comparison

    comparison.run(planned, options)


def _bench_step(options: argparse.Namespace) -> None:
    bench.run(options, options.typed)


def _train(options: argparse.Namespace) -> None:
    from sgdf.lab import train

    train.run(options)


def _reproduce(options: argparse.Namespace) -> None:
    from sgdf.lab import reproduce

    if options.name is None:
        reproduce.show_presets()
        return
    from sgdf.report import comparison

    comparison.run(reproduce.sweep_from(options), options)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != "sgdf":
        extra = "analysis" if error.name in ("curvlinops", "matplotlib") else "lab"
        return f'{error.name} is not installed: pip install "sgdf[{extra}]"'
    if isinstance(error, LabError):
        return str(error)
    return f"{type(error).__name__}: {error} (--debug shows where)"

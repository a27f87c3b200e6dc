"""`sgdf COMMAND`: parse the command line, run one command, turn a failure into one sentence."""

import argparse
import difflib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from sgdf import __version__
from sgdf_lab.cli import analyze, report, sweep, tools, train
from sgdf_lab.cli.options import Layout, examples, make_printable
from sgdf_lab.support.errors import UserError, describe, one_line
from sgdf_lab.support.tables import whole_words

CLOSED_PIPE = 141  # as shells say it: of `sgdf report runs | head`, whose reader has enough

#: What adds each command, in the order of the help.
COMMANDS = (
    *(sweep.add_demo, tools.add_bench, train.add_to, sweep.add_reproduce, sweep.add_sweep),
    *(report.add_report, report.add_evidence, analyze.add_to, tools.add_theory, tools.add_data),
)


class Parser(argparse.ArgumentParser):
    """Answers a wrong name with the near ones; breaks no name of its help at a hyphen."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"formatter_class": Layout, **settings})

    def error(self, message: str) -> NoReturn:
        wrong, _, choices = message.partition("(choose from ")
        if choices:
            known = [choice.strip(" '\")") for choice in choices.split(",")]
            near = difflib.get_close_matches(wrong.rsplit(":", 1)[-1].strip(" '\""), known)
            message = f"{wrong.strip()}: did you mean {' or '.join(near)}?" if near else message
        super().error(message)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line, with the command to `run` and the line as `typed`."""
    parser = Parser(
        prog="sgdf",
        description="SGD with a Wiener filter instead of momentum",
        epilog=examples(
            ("sgdf demo", "five optimizers on a small GPT: a first look"),
            ("sgdf train --help", "tasks, models, optimizers and settings"),
        ),
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add_command in COMMANDS:
        add_command(commands)
    options = parser.parse_args(argv)
    options.typed = shlex.join(["sgdf", *(sys.argv[1:] if argv is None else argv)])
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a failure is one sentence, with the traceback behind --debug."""
    make_printable(sys.stdout, sys.stderr)
    options = parse(argv)
    try:
        options.run(options)
    except KeyboardInterrupt as interrupt:
        complain(str(interrupt) or "stopped")
        return 130
    except (Exception, SystemExit) as error:  # the code of a user's optimizer may exit
        if BrokenPipeError in (type(error), type(error.__context__)):  # rich exits on it
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would complain at its end
            return CLOSED_PIPE
        if options.debug:
            raise
        complain(_sentence(error))
        return 1
    return 0


def complain(sentence: str) -> None:
    """On standard error; a terminal breaks no word of it."""
    line = f"sgdf: {sentence}"
    if sys.stderr.isatty():
        line = whole_words(line, shutil.get_terminal_size().columns)
    print(line, file=sys.stderr)


OURS = ("sgdf", "sgdf_lab")


def run() -> NoReturn:
    """What the shell starts as `sgdf`."""
    leave(main())


def leave(code: int) -> NoReturn:
    """Exit; as one of several processes, without Python's orderly shutdown.

    A thread of gloo may still hold a tensor of the last collective. If it lets go during that
    shutdown, it aborts the process, and torchrun reports a finished run as failed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _sentence(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in OURS:
        needed = "sgdf-lab[instruments]" if error.name == "curvlinops" else "sgdf-lab"
        return f'{error.name} is not installed: pip install "{needed}"'
    if isinstance(error, UserError):
        return describe(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{one_line(os.fsdecode(error.filename), 200)}: {error.strerror}"
    return f"{describe(error)} (--debug shows where)"

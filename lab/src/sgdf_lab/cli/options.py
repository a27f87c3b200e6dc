"""Options that several commands share, and the objects that they describe.

Importing this does not import torch: heavy imports wait until a command runs.
"""

import argparse
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.runs.config import LONGEST_NAME
from sgdf_lab.support.errors import one_line
from sgdf_lab.support.tables import say as say
from sgdf_lab.sweeps import ENGINES

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from sgdf_lab.runs.session import RunContext
    from sgdf_lab.sweeps.execute import Engine

FULL_WIDTH = 400  # no table is wider; `COLUMNS=80 sgdf report runs | less` is narrower on request
LONGEST_PATH = 4000  # bytes; Linux allows 4096

#: What `add_parser` is called on; argparse has no public name for it.
Commands = Any

#: A parser, or a group of its options.
Options = Any


def positive(text: str) -> int:
    """The type of an option that counts something."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value


def number(text: str) -> float:
    """The type of an option that measures something; not NaN, and not infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a number")
    return value


def path(text: str) -> Path:
    """The type of an option that names a file or a folder."""
    longest = max((len(os.fsencode(part)) for part in Path(text).parts), default=0)
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file or folder")
    if longest > LONGEST_NAME or len(os.fsencode(text)) > LONGEST_PATH:
        raise argparse.ArgumentTypeError(
            f"{one_line(text, 60)} is too long: a name may have {LONGEST_NAME} bytes, and a path "
            f"{LONGEST_PATH}"
        )
    return Path(text)


def add_device(parser: Options) -> None:
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda if available)")


def add_data_dir(parser: Options) -> None:
    parser.add_argument(
        "--data-dir",
        type=path,
        metavar="DIR",
        help="where the datasets are (default $SGDF_DATA or ~/.cache/sgdf/data); for the task "
        "images the folder of your own",
    )


def add_run_options(parser: argparse.ArgumentParser) -> Options:
    """The options of every command that trains; returns the group of those about computing."""
    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--out", type=path, default=Path("runs"), metavar="DIR",
        help="where to write the runs (default %(default)s)")  # fmt: skip
    add_data_dir(files)
    add("--keep", type=positive, metavar="N",
        help="keep the initial weights and those of every Nth epoch, for sgdf analyze")  # fmt: skip
    add("--no-checkpoints", action="store_true",
        help="for many short runs: save no weights; a stopped run begins again")  # fmt: skip
    add("--tensorboard", action="store_true", help="write TensorBoard event files into the runs")
    add("--wandb", action="store_true",
        help="log to Weights & Biases, offline (WANDB_MODE=online sends it)")  # fmt: skip
    computing = parser.add_argument_group("computing")
    add_device(computing)
    computing.add_argument(
        "--no-compile", action="store_true", help="on a GPU: start at once, but train slower"
    )
    return computing


def context_from(options: argparse.Namespace, device: "torch.device") -> "RunContext":
    from sgdf_lab.runs.session import RunContext

    return RunContext(
        out=options.out,
        device=device,
        data_dir=options.data_dir,
        compile=not options.no_compile,
        command=options.typed,
        tensorboard=options.tensorboard,
        wandb=options.wandb,
        keep=options.keep,
        checkpoints=not options.no_checkpoints,
    )


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that trains many runs."""
    add = parser.add_argument_group("many runs").add_argument
    add("--retry", action="store_true", help="train runs again that failed before")
    add("--record", type=path, metavar="FILE.jsonl", help="keep every ended run in this file as "
        "well, and train none again that is in it")  # fmt: skip
    add("--jobs", type=positive, metavar="N",
        help="worker processes (default: 1 on a GPU, one per core on a CPU)")  # fmt: skip
    add("--together", type=positive, metavar="N",
        help="with one job: runs side by side in it (default: 3 on a GPU)")  # fmt: skip
    add("--engine", choices=ENGINES, default="local",
        help="this machine or a Ray cluster (default %(default)s)")  # fmt: skip
    add("--address", metavar="HOST:PORT",
        help="the Ray cluster (default: the one on this machine)")  # fmt: skip
    add("--cpus-per-run", type=number, default=1.0, metavar="N",
        help="CPUs that Ray reserves (default 1)")  # fmt: skip
    add("--gpus-per-run", type=number, metavar="N",
        help="GPUs that Ray reserves (default: 1 with --device cuda, else 0)")  # fmt: skip


def sweep_context_from(options: argparse.Namespace) -> "RunContext":
    import torch

    from sgdf_lab.support.numerics import find_device

    if options.engine == "ray" and (options.gpus_per_run or str(options.device) == "cuda"):
        device = torch.device("cuda")  # of the nodes: this machine may have none
    else:
        device = find_device(options.device)
    return context_from(options, device)


def engine_from(options: argparse.Namespace) -> "Engine":
    from sgdf_lab.sweeps.execute import Engine

    return Engine(
        options.engine,
        options.jobs,
        options.together,
        options.address,
        options.cpus_per_run,
        options.gpus_per_run,
    )


def open_console(*, quiet: bool = False) -> "Console":
    """Where commands print: on a terminal in its width, in a file or pipe in full."""
    from rich.console import Console

    console = Console(quiet=quiet, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FULL_WIDTH
    return console

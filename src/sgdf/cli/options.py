"""Options that several commands share, and what they mean.

Importing this needs no more than sgdf itself does: heavy imports wait until a command runs.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf.lab.sweeps.plan import ENGINES

if TYPE_CHECKING:
    from rich.console import Console

    from sgdf.lab.runs.session import Place


#: What `add_parser` is called on; argparse has no public name for it.
Commands = Any


def positive(text: str) -> int:
    """The type of an option that counts something."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="default $SGDF_DATA or ~/.cache/sgdf/data"
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options of every command that trains."""
    add = parser.add_argument
    add_device(parser)
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="default %(default)s")
    add_data_dir(parser)
    add("--tensorboard", action="store_true", help="write event files into the runs' folders")
    add("--keep", type=positive, metavar="N", help="keep the weights of every Nth epoch and of the "
        "start, for sgdf analyze")  # fmt: skip
    add("--no-compile", action="store_true", help="on a GPU: start at once, train slower")


def place_from(options: argparse.Namespace) -> "Place":
    from sgdf.lab.runs.session import Place, find_device

    return Place(
        out=options.out,
        device=find_device(options.device),
        data_dir=options.data_dir,
        compile=not options.no_compile,
        command=options.typed,
        tensorboard=options.tensorboard,
        keep=options.keep,
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The options of every command that runs many runs."""
    add = parser.add_argument
    add("--retry", action="store_true", help="run again what failed before")
    add("--jobs", type=positive, metavar="N", help="processes (default: 1 on a GPU, else as cores)")
    add("--together", type=positive, default=3, metavar="N",
        help="with one job on a GPU: runs at once in it (default %(default)s)")  # fmt: skip
    add("--engine", choices=ENGINES, default="local", help="default %(default)s")
    add("--address", metavar="HOST:PORT", help="of the Ray cluster (default: the one found here)")
    add("--cpus-per-run", type=float, default=1.0, metavar="N", help="on Ray (default 1)")
    add("--gpus-per-run", type=float, metavar="N", help="on Ray (default: 1 on cuda, else 0)")


def engine_from(options: argparse.Namespace, place: "Place") -> dict[str, Any]:
    """The keyword arguments of `run_all` that the command line gives."""
    from sgdf.lab.sweeps.worker import cores

    on_gpu = place.device.type == "cuda"
    return {
        "jobs": options.jobs or (1 if on_gpu else cores()),
        "together": options.together if on_gpu else 1,
        "engine": options.engine,
        "address": options.address,
        "cpus_per_run": options.cpus_per_run,
        "gpus_per_run": options.gpus_per_run,
        "retry": options.retry,
    }


def place_for_engine(options: argparse.Namespace) -> "Place":
    """As `place_from`; but with Ray the GPUs belong to other machines than this one."""
    if options.engine == "ray" and (options.gpus_per_run or str(options.device) == "cuda"):
        import torch

        place = place_from(argparse.Namespace(**{**vars(options), "device": "cpu"}))
        return replace(place, device=torch.device("cuda"))
    return place_from(options)


def say(console: "Console", sentence: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)

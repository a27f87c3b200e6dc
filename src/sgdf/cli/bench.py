"""`sgdf bench`: measure what the optimizers cost."""

import argparse
from pathlib import Path

from sgdf.bench import step
from sgdf.cli.options import Commands, positive


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure what the optimizers cost")
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    step_parser = subjects.add_parser(
        "step", help="time and memory of one step, beside SGD and AdamW"
    )
    add = step_parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    lists, names = ", ".join(step.LISTS), [contestant.name for contestant in step.CONTESTANTS]
    default = "; ".join(
        f"on {device} {', '.join(step.default_lists(device))}" for device in step.COPY_BYTES
    )
    add("--lists", nargs="+", choices=step.LISTS, metavar="LIST",
        help=f"of {lists} (default: {default})")  # fmt: skip
    add("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    add("--repeats", type=positive, default=step.REPEATS,
        help="timings of each (default %(default)s)")  # fmt: skip
    add("--seconds", type=float, default=step.SECONDS,
        help="at most for each (default %(default)s)")  # fmt: skip
    add("--memory", type=float, metavar="GIB", help="use no more (default: what is free)")
    add("--out", type=Path, help="default: results/bench-step-DEVICE.json")
    step_parser.set_defaults(run=run_step)


def run_step(options: argparse.Namespace) -> None:
    step.run(
        device=options.device,
        lists=options.lists,
        only=options.only,
        repeats=options.repeats,
        seconds=options.seconds,
        memory_gib=options.memory,
        out=options.out,
        command=options.typed,
    )

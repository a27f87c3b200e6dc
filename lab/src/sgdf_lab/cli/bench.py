"""`sgdf bench`: measure what the optimizers cost."""

import argparse

from sgdf_lab.bench import contestants as known
from sgdf_lab.cli.options import Commands, number, path, positive


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure what the optimizers cost")
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    step_parser = subjects.add_parser(
        "step", help="time and memory of one step, beside SGD and AdamW"
    )
    add = step_parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    default = "; ".join(
        f"on {one} {', '.join(known.default_lists(one))}" for one in ("cpu", "cuda")
    )
    add("--lists", nargs="+", metavar="LIST",
        help=f"lists of parameters: {', '.join(known.LISTS)} (default: {default})")  # fmt: skip
    names = ", ".join(known.selectable())
    add("--only", nargs="+", metavar="NAME", help=f"measure only these: {names} "
        f"({known.WITH_TARGETS}: all that the targets of the list compare)")  # fmt: skip
    add("--repeats", type=positive, default=known.REPEATS,
        help="timings of each (default %(default)s)")  # fmt: skip
    add("--seconds", type=number, default=known.SECONDS,
        help="limit for each (default %(default)s)")  # fmt: skip
    add("--total", type=number, metavar="SECONDS",
        help="approximate limit for all together: it lowers --seconds")  # fmt: skip
    add("--memory", type=number, metavar="GIB", help="limit in GiB (default: what is free)")
    add("--out", type=path, help="default: bench/step-DEVICE.json")
    step_parser.set_defaults(run=run_step)


def run_step(options: argparse.Namespace) -> None:
    from sgdf_lab import bench

    bench.step(
        device=options.device,
        lists=options.lists,
        only=options.only,
        repeats=options.repeats,
        seconds=options.seconds,
        total=options.total,
        memory=options.memory,
        out=options.out,
        command=options.typed,
    )

"""`sgdf bench`: measure what the optimizers cost."""

import argparse

from sgdf_lab.cli.options import Commands, number, path, positive

# Names that the help shows, so that it needs no torch; a test compares them with sgdf_lab.bench.
LISTS = (
    *("one-tensor", "resnet18", "resnet50", "vit-l", "gpt", "tiny"),
    *("resnet18-matrices", "gpt-11m-matrices", "gpt-124m-matrices", "tiny-matrices"),
)
DEFAULT_LISTS = {
    "cpu": (*LISTS[:3], "gpt-11m-matrices"),
    "cuda": (*LISTS[2:5], "gpt-124m-matrices"),
}
CONTESTANTS = (
    *("sgd-fused", "sgd-foreach", "adamw-fused", "adamw-foreach"),
    *("torchao-adamw8bit", "bitsandbytes-adamw8bit"),
    *("sgdf-loop", "sgdf-foreach", "sgdf-fused", "sgdf-fused-constant"),
    *("sgdf-fused-bf16-state", "sgdf-fused-int8-state"),
    *("filteradam-foreach", "filteradam-fused", "filteradam-fused-int8-state"),
    *("filteradamw-fused-derived", "filteradamw-fused-derived-int8-state"),
    *("filteradamw-fused-constant", "wienerfilter-fused", "momentum-fused"),
    *("adamw-fused-bf16", "sgdf-fused-bf16", "sgdf-fused-bf16-random"),
    "filteradamw-fused-derived-bf16-int8-state-random",
    *("muon-loop", "filtermuon", "filtermuon-one-average", "filtermuon-int8-state"),
    *("filtermuon-eigenbasis", "soap-loop", "filtersoap", "filtersoap-short-sides"),
)
WITH_TARGETS = "targets"
REPEATS = 30
SECONDS = 2.0


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure what the optimizers cost")
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    step_parser = subjects.add_parser(
        "step", help="time and memory of one step, beside SGD and AdamW"
    )
    add = step_parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    names = (*CONTESTANTS, WITH_TARGETS)
    default = "; ".join(f"on {device} {', '.join(it)}" for device, it in DEFAULT_LISTS.items())
    add("--lists", nargs="+", metavar="LIST",
        help=f"lists of parameters: {', '.join(LISTS)} (default: {default})")  # fmt: skip
    add("--only", nargs="+", metavar="NAME",
        help=f"measure only these: {', '.join(names)} ({WITH_TARGETS}: all that the targets of "
        "the list compare)")  # fmt: skip
    add("--repeats", type=positive, default=REPEATS, help="timings of each (default %(default)s)")
    add("--seconds", type=number, default=SECONDS, help="limit for each (default %(default)s)")
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

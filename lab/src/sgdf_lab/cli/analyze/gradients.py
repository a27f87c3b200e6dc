"""`sgdf analyze gradients`: the first steps of several optimizers under a probe, from the same
weights on the same batches, and the errors of their gradient estimates.
"""

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.analyze import errors, starts, subjects
from sgdf_lab.cli.analyze.output import add_out, origin, save_figure, save_numbers
from sgdf_lab.cli.options import Commands, add_data_dir, add_device, positive, say
from sgdf_lab.cli.screen import open_console
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.tables import Column, as_rich

if TYPE_CHECKING:
    import torch
    from rich.console import Console, Group

    from sgdf_lab.data import Dataset
    from sgdf_lab.instruments.overhead import ProbeOverhead
    from sgdf_lab.instruments.probe import ProbeRecord
    from sgdf_lab.runs.config import Config

PAPERS = ("sgd", "sgd-ema", "sgd-cm", "sgdf")  # the panels of the paper's figure 2
TARGET_SHARE = 0.05  # of a step, for a probe


def add_to(subparsers: Commands) -> None:
    parser = subparsers.add_parser(
        "gradients", help="raw and estimated gradients over the first steps, gains, norms, errors"
    )
    add = parser.add_argument
    add("subject", metavar="TASK|RUN", help="a task, or the folder of a run for its settings")
    add("--model", help="default: the task's, or the run's")
    add("--optimizers", nargs="+", default=PAPERS, metavar="NAME",
        help="default %(default)s; sgd is plain here, without momentum")  # fmt: skip
    add("--lr", type=float, help="of all of them (default: the published ones)")
    add("--steps", type=positive, default=100, help="default %(default)s")
    add("--every", type=positive, default=1, help="steps between samples (default %(default)s)")
    add("--batch", type=positive, help="default: the task's, or the run's")
    add("--seed", type=int, help="default 0, or the run's")
    add("--data", choices=("real", "synthetic"), help="default real, or the run's")
    add("--errors", nargs="?", const="sgdf", metavar="OPTIMIZER", help="also measure bias, "
        "variance and error of gradient estimates while OPTIMIZER trains, from the run's "
        "checkpoint or the first step on (default %(const)s)")  # fmt: skip
    add("--epoch", type=int, nargs="+", dest="epochs", metavar="E", help="with --errors: start "
        "from the weights that the run kept of these epochs (sgdf train --keep), and measure "
        "nothing else")  # fmt: skip
    add("--replicas", type=positive, default=8, help="of each estimator (default %(default)s)")
    add("--images", type=positive, default=2000, metavar="N",
        help="with --errors: train on this many (default %(default)s)")  # fmt: skip
    add_device(parser)
    add_data_dir(parser)
    add_out(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, print tables, write JSON and figures."""
    from sgdf_lab.instruments import figures

    console = open_console()
    device = subjects.device_from(options)
    configs = starts.make_configs(options)
    config = next(iter(configs.values()))
    subjects.check_task(config)
    dataset = subjects.load_dataset(config, options)
    if options.epochs and not options.errors:
        raise UserError("--epoch selects where errors are measured from: it needs --errors")
    moments = dict.fromkeys(options.epochs or [None]) if options.errors else {}
    for epoch in moments:
        errors.check(options, epoch, dataset, device)
    say(console, f"{config.task}, {config.model}, {options.steps} steps on {device}; numbers and "
        f"figures go to {options.out}\n")  # fmt: skip
    if not options.epochs:
        watch(options, configs, dataset, device, console)
    measured = {
        epoch: errors.measure(options, epoch, dataset, device, console) for epoch in moments
    }
    if len(measured) > 1:
        save_figure(console, figures.errors_by_epoch(measured), options.out / "gradients-errors")


def watch(
    options: argparse.Namespace,
    configs: "dict[str, Config]",
    dataset: "Dataset",
    device: "torch.device",
    console: "Console",
) -> None:
    """Train every optimizer for the first steps under a probe."""
    import torch

    from sgdf_lab.instruments import figures
    from sgdf_lab.instruments.overhead import probe_overhead
    from sgdf_lab.instruments.probe import Probe
    from sgdf_lab.instruments.progress import counting

    records: dict[str, ProbeRecord] = {}
    losses: dict[str, float] = {}
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        counting("steps", console.is_terminal) as counter,
    ):
        for name, config in configs.items():
            counter.begin(name, options.steps)
            training = starts.FirstSteps(config, dataset, device)
            sampling = {"every": options.every, "first": options.steps, "seed": config.seed}
            with Probe(training.optimizer, **sampling) as probe:
                for _ in range(options.steps):
                    training.step()
                    counter.tick()
                    if not math.isfinite(training.loss):
                        break
            records[name], losses[name] = probe.record(), training.loss
        cost = probe_overhead(training.optimizer, training.step, rounds=10)
    console.print(table_of_records(configs, records, losses, console.width))
    say(console, sentence_about(cost, name))
    values = {
        **origin(options, device),
        "settings": {name: config.as_json() for name, config in configs.items()},
        "overhead": {**asdict(cost), "share": cost.share},
        "records": {name: asdict(record) for name, record in records.items()},
    }
    save_numbers(console, options.out / "gradients.json", values)
    drawn = {name: getattr(figures, name)(records) for name in ("distributions", "norms", "gains")}
    for name, figure in drawn.items():
        if figure is not None:
            save_figure(console, figure, options.out / f"gradients-{name}")


def sentence_about(cost: "ProbeOverhead", optimizer: str) -> str:
    sentence = (
        f"A probe of {optimizer} on every {cost.every}th step adds {100 * cost.share:.1f} % to a "
        f"step of {cost.plain_ms:.1f} ms."
    )
    if cost.share > TARGET_SHARE:
        every = cost.every_for(TARGET_SHARE)
        sentence += f" It stays below 5 % on every {every}th." if every else ""
    return sentence


def table_of_records(
    configs: "dict[str, Config]",
    records: "dict[str, ProbeRecord]",
    losses: dict[str, float],
    width: int,
) -> "Group":
    config = next(iter(configs.values()))
    steps = max(record.steps for record in records.values())
    columns = [Column("", "label"), Column("estimate is", "text")]
    columns += map(Column, ("lr", "std raw", "std est.", "‖raw‖", "‖est.‖", "K", "loss"))
    rows = []
    for name, record in records.items():
        gain = [layer[0] for row in record.rows for layer in row.gain or () if layer]
        loss = losses[name]
        rows.append([
            name,
            record.estimate,
            f"{configs[name].lr:g}",
            f"{record.raw.std:.2g}" if record.raw else "",
            f"{record.estimated.std:.2g}" if record.estimated else "",
            average([row.raw_norm for row in record.rows]),
            average([row.estimated_norm for row in record.rows]),
            average(gain),
            f"{loss:.3f}" if math.isfinite(loss) else f"diverged at {record.steps}",
        ])  # fmt: skip
    return as_rich(
        *(columns, rows, width),
        title=f"Gradients on {config.task}, {config.model}, batch {config.batch}, {steps} steps",
        caption="std over coordinates and steps, 2-norm and gain averaged over the steps",
    )


def average(values: list[Any]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3g}" if known else ""

"""`sgdf analyze gradients`: the first steps of several optimizers under a probe, from the same
weights on the same batches, and with `--errors` how far gradient estimates are from the truth.
"""

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.analyze import subjects
from sgdf_lab.cli.analyze.subjects import add_out, as_user_error, origin, save_figure, save_numbers
from sgdf_lab.cli.options import Commands, add_data_dir, add_device, open_console, positive, say
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.tables import Column, as_rich

if TYPE_CHECKING:
    import torch
    from rich.console import Console, Group

    from sgdf_lab.data import Dataset
    from sgdf_lab.instruments.estimators import EstimatorErrors
    from sgdf_lab.instruments.probe import ProbeRecord
    from sgdf_lab.runs.config import Config


PAPERS = ("sgd", "sgd-ema", "sgd-cm", "sgdf")  # the panels of the paper's figure 2


def add_gradients(subparsers: Commands) -> None:
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
    from sgdf_lab.tasks import classify

    console = open_console()
    from sgdf_lab.support.numerics import find_device

    device = find_device(options.device)
    configs = subjects.make_configs(options)
    config = next(iter(configs.values()))
    subjects.check_task(config)
    dataset = classify.load_dataset(config.task, options.data_dir, config.data == "synthetic")
    if options.epochs and not options.errors:
        raise UserError("--epoch selects where errors are measured from: it needs --errors")
    moments = dict.fromkeys(options.epochs or [None]) if options.errors else {}
    for epoch in moments:
        check_errors(options, epoch, dataset, device)
    say(console, f"{config.task}, {config.model}, {options.steps} steps on {device}; numbers and "
        f"figures go to {options.out}\n")  # fmt: skip
    if not options.epochs:
        watch(options, configs, dataset, device, console)
    measured = {
        epoch: measure_errors(options, epoch, dataset, device, console) for epoch in moments
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
    from sgdf_lab.instruments.evaluation import progress_counter
    from sgdf_lab.instruments.probe import Probe

    records: dict[str, ProbeRecord] = {}
    losses: dict[str, float] = {}
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        progress_counter("steps", console.is_terminal) as counter,
    ):
        for name, config in configs.items():
            counter.begin(name, options.steps)
            training = subjects.FirstSteps(config, dataset, device)
            sampling = {"every": options.every, "first": options.steps, "seed": config.seed}
            with Probe(training.optimizer, **sampling) as probe:
                for _ in range(options.steps):
                    training.step()
                    counter.tick()
                    if not math.isfinite(training.loss):
                        break
            records[name], losses[name] = probe.record(), training.loss
    console.print(table_of_records(configs, records, losses, console.width))
    values = {
        **origin(options, device),
        "settings": {name: config.as_json() for name, config in configs.items()},
        "records": {name: asdict(record) for name, record in records.items()},
    }
    save_numbers(console, options.out / "gradients.json", values)
    drawn = {name: getattr(figures, name)(records) for name in ("distributions", "norms", "gains")}
    for name, figure in drawn.items():
        if figure is not None:
            save_figure(console, figure, options.out / f"gradients-{name}")


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


# --- --errors: gradient estimates beside the true gradient ----------------------------------------

MEASUREMENTS = 20  # while a model trains


def check_errors(
    options: argparse.Namespace, epoch: int | None, dataset: "Dataset", device: "torch.device"
) -> None:
    """Refuse what cannot be measured before the first step is taken."""
    from sgdf_lab.instruments import estimators

    config, model = subjects.error_start(options, epoch, dataset, device)
    with as_user_error(f"the errors of {config.model} cannot be measured"):
        estimators.check_arguments(model, options.steps, 1, options.replicas, ())


def measure_errors(
    options: argparse.Namespace,
    epoch: int | None,
    dataset: "Dataset",
    device: "torch.device",
    console: "Console",
) -> "EstimatorErrors":
    """Measure errors while a model trains, print their table, write JSON and a figure."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import estimators, figures
    from sgdf_lab.tasks import classify

    config, model = subjects.error_start(options, epoch, dataset, device)
    images = classify.splits(config, dataset)[0]
    data = subjects.choose_images(images, dataset, device, options.images, batch=None)
    with as_user_error(f"the errors of {config.model} cannot be measured"):
        errors = estimators.estimator_errors(
            *(model, cross_entropy, data),
            optimizer_factory=lambda params: subjects.optimizer_for(config, params, device),
            steps=options.steps,
            every=max(1, options.steps // MEASUREMENTS),
            replicas=options.replicas,
            batch=min(config.batch, len(data[0][0])),
            seed=config.seed,
            progress=console.is_terminal,
        )
    console.print(table_of_errors(config, epoch, errors, console.width))
    stem = options.out / ("gradients-errors" + ("" if epoch is None else f"-epoch{epoch}"))
    values = {"settings": config.as_json(), "errors": asdict(errors)}
    save_numbers(console, Path(f"{stem}.json"), {**origin(options, device), **values})
    save_figure(console, figures.errors_by_step(errors), stem)
    return errors


def table_of_errors(
    config: "Config", epoch: int | None, errors: "EstimatorErrors", width: int
) -> "Group":
    """Sums over the measured steps but the first, where there is nothing to average yet."""
    from sgdf_lab.instruments.figures import ESTIMATOR_LOOKS

    since = errors.after_the_first
    later = [m for m in errors.measurements if m.step >= since]
    signal = sum(m.signal for m in later)
    noise = sum(m.noise for m in later)
    drift = [m.drift for m in later if m.drift is not None]
    caption = f"all relative to the signal |g*|²; noise {noise / signal:.3g} of it"
    if drift:
        caption += f"; drift q {sum(drift) / len(drift):.2g} of the noise's std per step"
    title = (
        f"Estimates of the gradient along {config.optimizer}, lr {config.lr:g}, "
        f"{errors.images} images, batch {errors.batch}"
    ) + ("" if epoch is None else f", after epoch {epoch}")
    columns = [Column("", "label")]
    columns += map(Column, ("bias²", "variance", "error ± se", "error / EMA's ± se"))
    rows = []
    for name, (label, _, _) in ESTIMATOR_LOOKS.items():
        error, ratio = errors.relative(name, since), errors.ratio(name, since=since)
        rows.append([
            label,
            f"{errors.share(name, 'bias2', since):.3g}",
            f"{errors.share(name, 'variance', since):.3g}",
            f"{error.value:.3g} ± {error.error:.1g}",
            f"{ratio.value:.3g} ± {ratio.error:.1g}",
        ])  # fmt: skip
    return as_rich(columns, rows, width, title=title, caption=caption)

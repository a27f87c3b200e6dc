"""`sgdf analyze gradients`: the first steps of several optimizers, from the same weights on the
same batches, and how well their estimates of the gradient meet the true one.
"""

import argparse
import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf.cli.analyze import check_kind, draw, note
from sgdf.cli.options import Commands, positive, say
from sgdf.support.errors import UserError

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from rich.table import Table
    from torch import Tensor, nn

    from sgdf.analysis.estimators import EstimatorErrors
    from sgdf.analysis.gradients import Record
    from sgdf.lab.data import Dataset
    from sgdf.lab.runs.config import Config
    from sgdf.lab.train.pipelines.resident import Epochs

PAPERS = ("sgd", "sgd-ema", "sgd-cm", "sgdf")  # the panels of its figure 2
PROMISE = 0.05  # of a step, for a probe
MEASUREMENTS = 20  # of errors, along a training


def add_to(subparsers: Commands) -> None:
    """The subcommand `gradients` of `sgdf analyze`."""
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
        "variance and error of the estimators along its training, from the run's checkpoint or the "
        "first step on (default %(const)s)")  # fmt: skip
    add("--epoch", type=int, nargs="+", dest="epochs", metavar="E", help="with --errors: measure "
        "them from the weights on that the run kept of these epochs (sgdf train --keep), and "
        "nothing else")  # fmt: skip
    add("--replicas", type=positive, default=8, help="of each estimator (default %(default)s)")
    add("--images", type=positive, default=2000, metavar="N",
        help="with --errors: train on so many alone (default %(default)s)")  # fmt: skip
    add("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    add("--data-dir", type=Path, metavar="DIR", help="default $SGDF_DATA or ~/.cache/sgdf/data")
    add("--out", type=Path, default=Path("analysis"), metavar="DIR", help="default %(default)s")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, show tables, write JSON and figures."""
    from rich.console import Console

    from sgdf.analysis import gradient_figures
    from sgdf.cli.options import find_device
    from sgdf.lab.tasks.classify import load_dataset
    from sgdf.support import provenance

    console = Console()
    device = find_device(options.device)
    wanted = settings(options)
    config = next(iter(wanted.values()))
    check_kind(config)
    dataset = load_dataset(config.task, options.data_dir, config.data == "synthetic")
    about = {
        "command": options.typed,
        "commit": provenance.commit(),
        "machine": provenance.machine(device.type),
    }
    if options.epochs and not options.errors:
        raise UserError("--epoch says where errors are measured from: it goes with --errors")
    moments = dict.fromkeys(options.epochs or [None]) if options.errors else {}
    for epoch in moments:
        check_errors(options, epoch, dataset, device)
    if not options.epochs:
        watch(options, wanted, dataset, device, about, console)
    found = {epoch: measure(options, epoch, dataset, device, about, console) for epoch in moments}
    if len(found) > 1:
        draw(console, gradient_figures.errors_by_epoch(found), options.out / "gradients-errors")


def settings(options: argparse.Namespace, *names: str) -> "dict[str, Config]":
    """The settings of every optimizer: the published ones, on the run's or the task's terms."""
    from sgdf.lab.runs import config as configs
    from sgdf.lab.runs.disk import read_config

    task, defaults = options.subject, {}
    if (Path(task) / "config.json").exists():
        of_run = read_config(Path(task))
        task = of_run.task
        defaults = {name: getattr(of_run, name) for name in ("model", "seed", "data", "batch")}
    for name in ("model", "seed", "data", "batch"):
        if getattr(options, name) is not None:
            defaults[name] = getattr(options, name)
    batch = {"batch": defaults.pop("batch")} if "batch" in defaults else {}
    lr = {} if options.lr is None else {"lr": options.lr}
    return {
        name: configs.make(
            task,
            optimizer=name,
            overrides={**batch, **lr, **({"momentum": 0.0} if name == "sgd" else {})},
            **defaults,
        )
        for name in names or dict.fromkeys(options.optimizers)
    }


# --- a training ----------------------------------------------------------------------------------


def weights(config: "Config", dataset: "Dataset", device: "torch.device") -> "nn.Module":
    """The network of a run with these settings, before its first step."""
    import torch

    from sgdf.lab import models
    from sgdf.lab.train.pipelines.resident import seed_for

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", config.seed))
        _, channels, height, width = dataset.train.images.shape
        shape = channels, height, width
        model = models.build(config.model, classes=dataset.classes, shape=shape)
    return model.to(device)


def batches(epochs: "Epochs", size: int) -> "Iterator[tuple[Tensor, Tensor]]":
    """The same for every optimizer."""
    import torch

    from sgdf.lab.train.loop import batch_sizes

    epoch = 0
    while True:
        epochs.begin(epoch)
        start = 0
        for count in batch_sizes(len(epochs.images), size):
            yield epochs.take(torch.tensor(start, device=epochs.plan.device), count)
            start += count
        epoch += 1


class Training:
    """Steps of one optimizer, from the seed's weights, on the seed's batches."""

    def __init__(self, config: "Config", dataset: "Dataset", device: "torch.device") -> None:
        from sgdf.lab import optimizers, tasks
        from sgdf.lab.train.pipelines.resident import Epochs

        self.model = weights(config, dataset, device).train()
        named: Any = self.model.named_parameters()
        self.optimizer = optimizers.build(
            config.optimizer, named, dict(config.settings), device=device
        )
        augmented = tasks.find(config.task).augmented
        epochs = Epochs(dataset.train, dataset, device, seed=config.seed, augmented=augmented)
        self.batches = batches(epochs, config.batch)
        self.loss = math.nan

    def step(self) -> None:
        from torch.nn import functional as F

        x, y = next(self.batches)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.loss = loss.item()


def watch(
    options: argparse.Namespace,
    wanted: "dict[str, Config]",
    dataset: "Dataset",
    device: "torch.device",
    about: dict[str, Any],
    console: "Console",
) -> None:
    """Train every optimizer for the first steps under a probe."""
    import torch

    from sgdf.analysis import gradient_figures, gradients
    from sgdf.analysis.probe import counting
    from sgdf.lab.train.pipelines.resident import seed_for

    records: dict[str, Record] = {}
    losses: dict[str, float] = {}
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        counting("steps", console.is_terminal) as counter,
    ):
        for name, config in wanted.items():
            counter.begin(name, options.steps)
            torch.manual_seed(seed_for("dropout", config.seed))
            training = Training(config, dataset, device)
            with gradients.Probe(
                training.optimizer, every=options.every, first=options.steps, seed=config.seed
            ) as probe:
                for _ in range(options.steps):
                    training.step()
                    counter.tick()
                    if not math.isfinite(training.loss):
                        break
            records[name], losses[name] = probe.record(), training.loss
        cost = gradients.overhead(training.optimizer, training.step, rounds=10)
    console.print(table_of_records(wanted, records, losses), highlight=False)
    say(console, sentence(cost, name))
    values = {
        **about,
        "settings": {name: config.as_json() for name, config in wanted.items()},
        "overhead": {**asdict(cost), "share": cost.share},
        "records": {name: asdict(record) for name, record in records.items()},
    }
    note(options.out / "gradients.json", values)
    say(console, f"  in {options.out / 'gradients.json'}")
    draw(console, gradient_figures.distributions(records), options.out / "gradients-distributions")
    draw(console, gradient_figures.norms(records), options.out / "gradients-norms")
    gains = gradient_figures.gains(records)
    if gains is not None:
        draw(console, gains, options.out / "gradients-gains")


def sentence(cost: Any, optimizer: str) -> str:
    said = (
        f"A probe of {optimizer} on every {cost.every}th step adds {100 * cost.share:.1f} % to a "
        f"step of {cost.plain_ms:.1f} ms."
    )
    if cost.share > PROMISE:
        every = cost.every_for(PROMISE)
        said += f" It stays below 5 % on every {every}th." if every else ""
    return said


def table_of_records(
    wanted: "dict[str, Config]", records: "dict[str, Record]", losses: dict[str, float]
) -> "Table":
    from rich.table import Table

    config = next(iter(wanted.values()))
    steps = max(record.steps for record in records.values())
    shown = Table(
        title=f"Gradients on {config.task}, {config.model}, batch {config.batch}, {steps} steps",
        caption="std over coordinates and steps, 2-norm and gain averaged over the steps",
    )
    for name in ("", "lr", "estimate is", "std raw", "std est.", "‖raw‖", "‖est.‖", "K", "loss"):
        shown.add_column(name, justify="left" if name in ("", "estimate is") else "right")
    for name, record in records.items():
        gain = [layer[0] for row in record.rows for layer in row.gain or () if layer]
        loss = losses[name]
        shown.add_row(
            name,
            f"{wanted[name].lr:g}",
            record.estimate,
            f"{record.raw.std:.2g}" if record.raw else "",
            f"{record.estimated.std:.2g}" if record.estimated else "",
            average([row.raw_norm for row in record.rows]),
            average([row.estimated_norm for row in record.rows]),
            average(gain),
            f"{loss:.3f}" if math.isfinite(loss) else f"diverged at {record.steps}",
        )
    return shown


def average(values: list[Any]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3g}" if known else ""


# --- errors about the true gradient --------------------------------------------------------------


def check_errors(
    options: argparse.Namespace, epoch: int | None, dataset: "Dataset", device: "torch.device"
) -> None:
    """Say what stands in their way before the first step is taken."""
    from sgdf.analysis import estimators

    config, model = start(options, epoch, dataset, device)
    with in_a_sentence(config):
        estimators.check_errors(model, options.steps, 1, options.replicas, ())


def start(
    options: argparse.Namespace, epoch: int | None, dataset: "Dataset", device: "torch.device"
) -> "tuple[Config, nn.Module]":
    """Where errors are measured from: a run's checkpoint, or else the first step.

    At a checkpoint batch norm goes by its running statistics: with a batch's own, no gradient is
    the true one. The run's optimizer has its settings, and the learning rate it had come to.
    """
    from sgdf.analysis.probe import batch_norms
    from sgdf.lab.runs.disk import find_checkpoint, read_config, require_checkpoint

    config = settings(options, options.errors)[options.errors]
    model = weights(config, dataset, device).train()
    folder = Path(options.subject)
    if epoch is None and not (folder / "last.pt").exists():
        return config, model
    path = find_checkpoint(folder, epoch)
    checkpoint = require_checkpoint(path, device)
    try:
        model.load_state_dict(checkpoint["model"])
    except RuntimeError:
        raise UserError(f"{path} is not of {config.model}: leave out --model") from None
    for norm in batch_norms(model).values():
        norm.eval()
    of_run = read_config(folder)
    if of_run.optimizer == config.optimizer:
        metrics = checkpoint["metrics"]
        now = metrics[-1]["lr"] if metrics else of_run.lr
        lr = now if options.lr is None else options.lr
        config = replace(config, settings={**of_run.settings, "lr": lr})
    return config, model


@contextlib.contextmanager
def in_a_sentence(config: "Config") -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UserError(f"the errors of {config.model} cannot be measured: {error}") from error


def measure(
    options: argparse.Namespace,
    epoch: int | None,
    dataset: "Dataset",
    device: "torch.device",
    about: dict[str, Any],
    console: "Console",
) -> "EstimatorErrors":
    import torch
    from torch.nn import functional as F

    from sgdf.analysis import estimators, gradient_figures
    from sgdf.lab import optimizers
    from sgdf.lab.train.pipelines.resident import Images

    config, model = start(options, epoch, dataset, device)
    images = Images(dataset.train, dataset, device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = order[: options.images].sort().values.to(device)
    data = images.normalised(images.pixels[chosen]), images.labels[chosen]
    with in_a_sentence(config):
        found = estimators.estimator_errors(
            model,
            F.cross_entropy,
            [data],
            optimizer_factory=lambda params: optimizers.build(
                config.optimizer, params, dict(config.settings), device=device
            ),
            steps=options.steps,
            every=max(1, options.steps // MEASUREMENTS),
            replicas=options.replicas,
            batch=min(config.batch, len(data[0])),
            seed=config.seed,
            progress=console.is_terminal,
        )
    console.print(table_of_errors(config, epoch, found), highlight=False)
    values = {**about, "settings": config.as_json(), "errors": asdict(found)}
    stem = options.out / ("gradients-errors" + ("" if epoch is None else f"-epoch{epoch}"))
    note(Path(f"{stem}.json"), values)
    say(console, f"  in {stem}.json")
    draw(console, gradient_figures.errors(found), stem)
    return found


def table_of_errors(config: "Config", epoch: int | None, found: "EstimatorErrors") -> "Table":
    """Sums over the measured steps but the first, where there is nothing to average yet."""
    from rich.table import Table

    from sgdf.analysis.gradient_figures import LOOKS

    since = found.after_the_first
    later = [m for m in found.measurements if m.step >= since]
    signal = sum(m.signal for m in later)
    noise = sum(m.noise for m in later)
    drift = [m.drift for m in later if m.drift is not None]
    caption = f"all as parts of the signal |g*|²; noise {noise / signal:.3g} of it"
    if drift:
        caption += f"; drift q {sum(drift) / len(drift):.2g} of the noise's std a step"
    shown = Table(
        title=f"Estimates of the gradient along {config.optimizer}, lr {config.lr:g}, "
        f"{found.images} images, batch {found.batch}"
        + ("" if epoch is None else f", after epoch {epoch}"),
        caption=caption,
    )
    shown.add_column("")
    for name in ("bias²", "variance", "error ± se", "error / EMA's ± se"):
        shown.add_column(name, justify="right")
    for name, (label, _, _) in LOOKS.items():
        error, ratio = found.relative(name, since), found.ratio(name, since=since)
        shown.add_row(
            label,
            f"{found.share(name, 'bias2', since):.3g}",
            f"{found.share(name, 'variance', since):.3g}",
            f"{error.value:.3g} ± {error.error:.1g}",
            f"{ratio.value:.3g} ± {ratio.error:.1g}",
        )
    return shown

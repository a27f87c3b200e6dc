"""What is analysed: the runs, their weights and images, and first steps of a task. What is written.

The images are those of training, without augmentation. The loss of a run is the cross-entropy,
without weight decay.
"""

import argparse
import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.options import add_data_dir, add_device, open_console, path, positive, say
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from sgdf_lab.data import Dataset
    from sgdf_lab.runs.config import Config
    from sgdf_lab.training.images import ResidentBatches


# --- files: numbers with their origin as JSON, figures as PNG and SVG -----------------------------


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=path, default=Path("analysis"), metavar="DIR", help="default %(default)s"
    )


def origin(options: argparse.Namespace, device: "torch.device") -> dict[str, Any]:
    """The command, commit and machine that results come from."""
    from sgdf_lab.support.provenance import commit, machine

    return {"command": options.typed, "commit": commit(), "machine": machine(device.type)}


def save_numbers(console: "Console", file: Path, values: dict[str, Any]) -> None:
    """Write JSON, with arrays as lists."""
    from sgdf_lab.support.files import explained, write_atomically

    with explained(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(values, default=lambda array: array.tolist()) + "\n")
    say(console, f"  in {file}")


def save_figure(console: "Console", figure: Any, stem: Path) -> None:
    from sgdf_lab.support import figures
    from sgdf_lab.support.files import explained

    with explained(stem.parent):
        files = figures.write(figure, stem)
    for file in files:
        say(console, f"  in {file}")


@contextlib.contextmanager
def as_user_error(about: str) -> Iterator[None]:
    """Turn what an instrument refuses into a user error that begins with `about`."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{about}: {error}") from error


IMAGES = 2000


# --- options --------------------------------------------------------------------------------------


def add_moments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--epoch", type=int, nargs="+", dest="epochs", metavar="E", help="use the weights that "
        "sgdf train --keep kept of these epochs (default: the last checkpoint)")  # fmt: skip
    add("--seed", type=int, default=0, help="of the random directions (default %(default)s)")


def add_runs(
    parser: argparse.ArgumentParser, *, batch: int, effect: str = "nothing else changes"
) -> None:
    """Options that select runs, and the images they are evaluated on."""
    add = parser.add_argument
    add("runs", nargs="+", type=path, metavar="RUN", help="folders of runs; several are drawn "
        "side by side")  # fmt: skip
    add("--images", type=number_of_images, default=IMAGES, metavar="N", help="training images, "
        "always the same ones, or all (default %(default)s)")  # fmt: skip
    add("--batch", type=positive, default=batch, metavar="N", help="images at once: fewer need "
        f"less memory; {effect} (default %(default)s)")  # fmt: skip
    add_device(parser)
    add_out(parser)
    add_data_dir(parser)


def number_of_images(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither a positive number nor all")
    return int(text)


# --- runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A run at its last checkpoint, or after one of its epochs."""

    folder: Path
    config: "Config"
    epoch: int | None
    label: str

    @property
    def name(self) -> str:
        """Used in file names."""
        return self.config.name + ("" if self.epoch is None else f"-epoch{self.epoch}")


def find_subjects(folders: Sequence[Path], epochs: Sequence[int] | None = None) -> list[Subject]:
    """All subjects, checked before work on the first one begins."""
    from sgdf_lab.reports.labels import run_names
    from sgdf_lab.runs.results import read_config
    from sgdf_lab.runs.run_folder import find_checkpoint

    configs = [read_config(folder) for folder in folders]
    moments: list[int | None] = list(dict.fromkeys(epochs or ())) or [None]
    subjects = [
        Subject(folder, config, epoch, label + ("" if epoch is None else f", epoch {epoch}"))
        for folder, config, label in zip(folders, configs, run_names(configs), strict=True)
        for epoch in moments
    ]
    for subject in subjects:
        check_task(subject.config)
        find_checkpoint(subject.folder, subject.epoch)
    if len({subject.name for subject in subjects}) < len(subjects):
        raise UserError("the same run is named twice")
    return subjects


def begin(what: str, options: argparse.Namespace) -> "tuple[Console, torch.device, list[Subject]]":
    """Find the runs, and say what is about to be measured, and where it is written."""
    from sgdf_lab.support.numerics import find_device

    console, device = open_console(), find_device(options.device)
    found = find_subjects(options.runs, getattr(options, "epochs", None))
    unit = "checkpoint" + "s" * (len(found) > 1)
    images = "all images" if options.images is None else f"{options.images} images"
    say(console, f"Measuring {what} of {len(found)} {unit}, {images}, on {device}; written to "
        f"{options.out}")  # fmt: skip
    return console, device, found


def check_task(config: "Config") -> None:
    """The command handles the lab's classifiers of images that fit in memory."""
    from sgdf_lab import tasks

    if config.task_definition.kind != "classify":
        fitting = ", ".join(task.name for task in tasks.TASKS.values() if task.kind == "classify")
        raise UserError(
            f"sgdf analyze handles runs of {fitting}, not of {config.task}; "
            "sgdf_lab.instruments takes any model, loss and data"
        )


# --- weights and images ---------------------------------------------------------------------------


def load_subject(
    subject: Subject, options: argparse.Namespace, device: "torch.device"
) -> "tuple[nn.Module, list[tuple[Tensor, Tensor]]]":
    """The model with the subject's weights, and batches of its training images."""

    from sgdf_lab.runs.run_folder import find_checkpoint, require_checkpoint
    from sgdf_lab.tasks import channels_last, classify

    config = subject.config
    checkpoint = require_checkpoint(find_checkpoint(subject.folder, subject.epoch), device)
    dataset = classify.load_dataset(config.task, options.data_dir, config.data == "synthetic")
    model = classify.initial_model(config, dataset)
    model.load_state_dict(checkpoint["model"])
    images = classify.splits(config, dataset)[0]  # without those that the run held out
    chosen = choose_images(images, dataset, device, options.images, options.batch)
    return channels_last(model, device), chosen


def choose_images(
    split: Any, dataset: "Dataset", device: "torch.device", count: int | None, batch: int | None
) -> "list[tuple[Tensor, Tensor]]":
    """Always the same `count` images of a split, or all, in batches or in one."""
    import torch

    from sgdf_lab.training.images import ResidentImages

    images = ResidentImages(split, dataset, device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = order[:count].sort().values.to(device)
    parts = torch.split(chosen, batch or len(chosen))
    return [(images.normalised(images.pixels[i]), images.labels[i]) for i in parts]


def kept_weights(subject: Subject) -> "tuple[list[int], Iterator[dict[str, Tensor]]]":
    """The epochs whose weights a run kept, and these weights."""
    import torch

    from sgdf_lab.runs.run_folder import find_checkpoint, kept_epochs, require_checkpoint

    epochs = kept_epochs(subject.folder)
    if len(epochs) < 2:
        raise UserError(
            f"{subject.folder} has kept the weights of {len(epochs)} epochs, a plane needs two or "
            "more: train the run with --keep N"
        )
    files = [find_checkpoint(subject.folder, epoch) for epoch in epochs]
    return epochs, (require_checkpoint(file, torch.device("cpu"))["model"] for file in files)


# --- where training starts: at a task's first step, or at a run's checkpoint ---------------------


def make_configs(options: argparse.Namespace, *optimizers: str) -> "dict[str, Config]":
    """The published settings of every optimizer, with the task, model, seed and batch of the run
    if a run was given; options override both.
    """
    from sgdf_lab.runs import config as configs
    from sgdf_lab.runs.results import read_config

    task, defaults, held_out = options.subject, {}, {}
    if (Path(task) / "config.json").exists():
        of_run = read_config(Path(task))
        task = of_run.task
        defaults = {name: getattr(of_run, name) for name in ("model", "seed", "data", "batch")}
        held_out = {"validation": of_run.validation} if of_run.validation else {}
    for name in ("model", "seed", "data", "batch"):
        if getattr(options, name) is not None:
            defaults[name] = getattr(options, name)
    batch = {"batch": defaults.pop("batch")} if "batch" in defaults else {}
    lr = {} if options.lr is None else {"lr": options.lr}
    return {
        name: configs.make(
            task,
            optimizer=name,
            overrides={**batch, **lr, **held_out, **({"momentum": 0.0} if name == "sgd" else {})},
            **defaults,
        )
        for name in optimizers or dict.fromkeys(options.optimizers)
    }


def optimizer_for(config: "Config", parameters: Any, device: "torch.device") -> "Optimizer":
    from sgdf_lab import optimizers

    return optimizers.build_optimizer(
        config.optimizer, parameters, dict(config.settings), device=device
    )


class FirstSteps:
    """The first steps of one optimizer, with the weights and batches of the config's seed."""

    def __init__(self, config: "Config", dataset: "Dataset", device: "torch.device") -> None:
        import torch

        from sgdf_lab.tasks import classify
        from sgdf_lab.training.batches import seed_for

        torch.manual_seed(seed_for("dropout", config.seed))
        self.model = classify.initial_model(config, dataset).to(device).train()
        self.optimizer = optimizer_for(config, self.model.named_parameters(), device)
        images = classify.splits(config, dataset)[0]
        epochs = classify.resident_batches(config, images, dataset, device)
        self.batches = endless_batches(epochs, config.batch)
        self.loss = math.nan

    def step(self) -> None:
        from torch.nn import functional as F

        x, y = next(self.batches)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.loss = loss.item()


def endless_batches(epochs: "ResidentBatches", size: int) -> "Iterator[tuple[Tensor, Tensor]]":
    """Epoch after epoch; the same for every optimizer."""
    import torch

    from sgdf_lab.training.batches import batch_sizes

    epoch = 0
    while True:
        epochs.begin(epoch)
        start = 0
        for count in batch_sizes(len(epochs.images), size):
            yield epochs.take(torch.tensor(start, device=epochs.plan.device), count)
            start += count
        epoch += 1


def error_start(
    options: argparse.Namespace, epoch: int | None, dataset: "Dataset", device: "torch.device"
) -> "tuple[Config, nn.Module]":
    """Settings and weights to measure errors from: a run's checkpoint, or else the first step.

    At a checkpoint batch norm uses its running statistics: with those of the batch there is no true
    gradient. The run's optimizer keeps its settings and its current learning rate.
    """
    from sgdf_lab.instruments.evaluation import batch_norms
    from sgdf_lab.runs.results import read_config
    from sgdf_lab.runs.run_folder import find_checkpoint, require_checkpoint
    from sgdf_lab.tasks import classify

    config = make_configs(options, options.errors)[options.errors]
    model = classify.initial_model(config, dataset).to(device).train()
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
        current = metrics[-1]["lr"] if metrics else of_run.lr
        lr = current if options.lr is None else options.lr
        config = replace(config, settings={**of_run.settings, "lr": lr})
    return config, model

"""The runs that are analysed: their weights, and their training images without augmentation.

The loss of a run is the cross-entropy, without weight decay.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.analyze.output import add_out
from sgdf_lab.cli.options import add_data_dir, add_device, find_device, path, positive
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sgdf_lab.data import Dataset, Split
    from sgdf_lab.runs.config import Config

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


def device_from(options: argparse.Namespace) -> "torch.device":
    return find_device(options.device)


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


def find(folders: Sequence[Path], epochs: Sequence[int] | None = None) -> list[Subject]:
    """All subjects, checked before work on the first one begins."""
    from sgdf_lab.runs.disk import find_checkpoint, read_config

    configs = [read_config(folder) for folder in folders]
    moments: list[int | None] = list(dict.fromkeys(epochs or ())) or [None]
    subjects = [
        Subject(folder, config, epoch, label + ("" if epoch is None else f", epoch {epoch}"))
        for folder, config, label in zip(folders, configs, labels(configs), strict=True)
        for epoch in moments
    ]
    for subject in subjects:
        check_task(subject.config)
        find_checkpoint(subject.folder, subject.epoch)
    if len({subject.name for subject in subjects}) < len(subjects):
        raise UserError("the same run is named twice")
    return subjects


def plan_in_words(
    what: str, found: Sequence[Subject], options: argparse.Namespace, device: object
) -> str:
    """What is about to be measured, and where it is written."""
    unit = "checkpoint" + "s" * (len(found) > 1)
    images = "all images" if options.images is None else f"{options.images} images"
    return (
        f"Measuring {what} of {len(found)} {unit}, {images}, on {device}; written to {options.out}"
    )


def labels(configs: "Sequence[Config]") -> list[str]:
    """The optimizer of each run, and as many of its settings as distinguish the runs."""
    from sgdf_lab.report.labels import settings_words

    words = [[c.optimizer] for c in configs]
    for more in (
        lambda c: settings_words(c, [rival for rival in configs if rival.optimizer == c.optimizer]),
        lambda c: [f"seed {c.seed}"],
        lambda c: [c.task, c.model],
        lambda c: [c.name.rpartition("-")[2]],
    ):
        if len({tuple(label) for label in words}) == len(words):
            break
        words = [[*label, *more(c)] for label, c in zip(words, configs, strict=True)]
    return [", ".join(label) for label in words]


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


def training_images(config: "Config", dataset: "Dataset") -> "Split":
    """Without those that the run held out for validation."""
    from sgdf_lab.train.pipelines.resident import hold_out

    return hold_out(dataset.train, config.validation)[0] if config.validation else dataset.train


def load(
    subject: Subject, options: argparse.Namespace, device: "torch.device"
) -> "tuple[nn.Module, list[tuple[Tensor, Tensor]]]":
    """The model with the subject's weights, and batches of its training images."""
    import torch

    from sgdf_lab.runs.disk import find_checkpoint, require_checkpoint

    config = subject.config
    checkpoint = require_checkpoint(find_checkpoint(subject.folder, subject.epoch), device)
    dataset = load_dataset(config, options)
    training = training_images(config, dataset)
    with torch.random.fork_rng(devices=[]):
        model = model_for(config, dataset)
    model.load_state_dict(checkpoint["model"])
    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, choose_images(training, dataset, device, options.images, options.batch)


def load_dataset(config: "Config", options: argparse.Namespace) -> "Dataset":
    from sgdf_lab import data

    name = config.task_definition.dataset
    return data.load(name, options.data_dir, synthetic=config.data == "synthetic")


def model_for(config: "Config", dataset: "Dataset") -> "nn.Module":
    """The config's network, with weights from torch's current random state."""
    from sgdf_lab import models

    _, channels, height, width = dataset.train.images.shape
    return models.build_classifier(
        config.model, classes=dataset.classes, shape=(channels, height, width)
    )


def choose_images(
    split: Any, dataset: "Dataset", device: "torch.device", count: int | None, batch: int | None
) -> "list[tuple[Tensor, Tensor]]":
    """Always the same `count` images of a split, or all, in batches or in one."""
    import torch

    from sgdf_lab.train.pipelines.resident import ResidentImages

    images = ResidentImages(split, dataset, device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = order[:count].sort().values.to(device)
    parts = torch.split(chosen, batch or len(chosen))
    return [(images.normalised(images.pixels[i]), images.labels[i]) for i in parts]


def kept_weights(subject: Subject) -> "tuple[list[int], Iterator[dict[str, Tensor]]]":
    """The epochs whose weights a run kept, and these weights."""
    import torch

    from sgdf_lab.runs.disk import find_checkpoint, kept_epochs, require_checkpoint

    epochs = kept_epochs(subject.folder)
    if len(epochs) < 2:
        raise UserError(
            f"{subject.folder} has kept the weights of {len(epochs)} epochs, a plane needs two or "
            "more: train the run with --keep N"
        )
    files = [find_checkpoint(subject.folder, epoch) for epoch in epochs]
    return epochs, (require_checkpoint(file, torch.device("cpu"))["model"] for file in files)

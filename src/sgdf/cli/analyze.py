"""`sgdf analyze`: the instruments on runs of the lab. Heavy imports wait until a command runs.

A run's last checkpoint, or the weights it kept of some epoch, is looked at on its training images,
without augmentation, and its loss is the cross-entropy alone: weight decay is no part of it.
"""

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf.cli.options import Commands, positive, say
from sgdf.support.errors import UserError

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from sgdf.lab.runs.config import Config

IMAGES = 2000
# Images that are on their way through the network at once. Second derivatives take more memory.
HESSIAN_BATCH, LANDSCAPE_BATCH = 200, 1000


def add_to(commands: Commands) -> None:
    from sgdf.cli import analyze_gradients

    parser = commands.add_parser("analyze", help="Hessian, landscape and gradients of a model")
    instruments = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    add_instruments(instruments)
    analyze_gradients.add_to(instruments)


def add_instruments(subparsers: Commands) -> None:
    """Add the subcommands `hessian`, `landscape` and `path`."""
    hessian = subparsers.add_parser("hessian", help="the largest eigenvalues, trace and density")
    add = hessian.add_argument
    add("--k", type=int, default=50, help="eigenvalues (default %(default)s)")
    add("--trace-samples", type=int, default=100, metavar="N", help="random vectors for the trace "
        "(default %(default)s)")  # fmt: skip
    add("--no-density", action="store_true", help="leave out the density, which is about "
        "40 %% of the work")  # fmt: skip
    hessian.set_defaults(run=run_hessian)
    landscape = subparsers.add_parser("landscape", help="the loss around the weights, in a plane")
    add = landscape.add_argument
    add("--size", type=int, default=51, help="points on an axis (default %(default)s)")
    add("--span", type=float, default=1.0, help="how far to go, in units of the weights' own size "
        "(default %(default)s)")  # fmt: skip
    add("--dimensions", type=int, choices=(1, 2), default=2, help="1: a line (default 2)")
    landscape.set_defaults(run=run_landscape)
    path = subparsers.add_parser("path", help="the way of a training with --keep, over the loss")
    path.add_argument(
        "--size", type=int, default=31, help="points on an axis (default %(default)s)"
    )
    path.set_defaults(run=run_path)
    for parser in (hessian, landscape):
        add = parser.add_argument
        add("--epoch", type=int, nargs="+", dest="epochs", metavar="E", help="look at the weights "
            "that sgdf train --keep kept of these (default: the last checkpoint)")  # fmt: skip
        add("--seed", type=int, default=0, help="of the random directions (default %(default)s)")
    for parser in (hessian, landscape, path):
        batch = HESSIAN_BATCH if parser is hessian else LANDSCAPE_BATCH
        add = parser.add_argument
        add("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs; several are "
            "drawn side by side")  # fmt: skip
        add("--images", type=images, default=IMAGES, metavar="N", help="training images, always "
            "the same ones, or all (default %(default)s)")  # fmt: skip
        then = "batch norm goes by their statistics" if parser is path else "nothing else changes"
        add("--batch", type=positive, default=batch, metavar="N", help="images at once: fewer take "
            f"less memory; {then} (default %(default)s)")  # fmt: skip
        add("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
        add("--out", type=Path, default=Path("analysis"), metavar="DIR", help="default %(default)s")
        add("--data-dir", type=Path, metavar="DIR", help="default $SGDF_DATA or ~/.cache/sgdf/data")


def images(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither a positive number nor all")
    return int(text)


# --- the commands --------------------------------------------------------------------------------


def run_hessian(options: argparse.Namespace) -> None:
    """Print the largest eigenvalue and the trace of each run, and draw them all."""
    from rich.console import Console
    from torch.nn.functional import cross_entropy

    from sgdf.analysis import figures, hessian

    console, device = Console(), device_from(options)
    spectra = {}
    subjects = find_subjects(options.runs, options.epochs)
    for subject in subjects:
        model, data = open_run(subject, options, device)
        with in_a_sentence(subject.folder):
            found = hessian.spectrum(
                *(model, cross_entropy, data),
                k=options.k,
                trace_samples=options.trace_samples,
                density=not options.no_density,
                seed=options.seed,
            )
        spectra[subject.label] = found
        say(console, f"{subject.label}: largest eigenvalue {found.largest:.5g}, trace "
            f"{found.trace:.5g} ± {found.trace_standard_error:.2g} (standard error), "
            f"{found.products} products in {found.seconds:.0f} s")  # fmt: skip
        file = options.out / f"hessian-{subject.name}.json"
        note(file, {**dataclasses.asdict(found), **circumstances(subject, options, device)})
        say(console, f"  in {file}")
    say(console, f"Hessian of the mean cross-entropy over {found.images} training images; "
        f"{found.mode}")  # fmt: skip
    stem = f"hessian-{subjects[0].name}" if len(subjects) == 1 else "hessian"
    draw(console, figures.eigenvalues(spectra), options.out / stem)
    if not options.no_density:
        draw(console, figures.density(spectra), options.out / f"{stem}-density")


def run_landscape(options: argparse.Namespace) -> None:
    """Measure each run's surface, going on where an earlier call stopped, and draw them all."""
    from rich.console import Console
    from torch.nn.functional import cross_entropy

    from sgdf.analysis import figures, landscape
    from sgdf.support.files import explained

    console, device = Console(), device_from(options)
    kind = "line" if options.dimensions == 1 else "landscape"
    surfaces = {}
    subjects = find_subjects(options.runs, options.epochs)
    for subject in subjects:
        model, data = open_run(subject, options, device)
        file = options.out / f"{kind}-{subject.name}.npz"
        with in_a_sentence(subject.folder), explained(options.out):
            found = landscape.surface(
                *(model, cross_entropy, data),
                size=options.size,
                span=options.span,
                dimensions=options.dimensions,
                seed=options.seed,
                save=file,
            )
        surfaces[subject.label] = found
        about = {**found.about(), **circumstances(subject, options, device)}
        note(file.with_suffix(".json"), about)
        say(console, f"{subject.label}: loss {found.loss:.5g}, up to {found.values.max():.5g} on "
            f"the grid; {found.seconds:.0f} s\n  in {file}")  # fmt: skip
    say(console, f"Mean cross-entropy over {found.images} training images; {found.mode}")
    stem = options.out / (f"{kind}-{subjects[0].name}" if len(subjects) == 1 else kind)
    if options.dimensions == 1:
        draw(console, figures.profiles(surfaces), stem)
    elif options.size > 1:
        draw(console, figures.contours(surfaces), stem)
        draw(console, figures.relief(surfaces), stem.with_name(stem.name + "-3d"))


def run_path(options: argparse.Namespace) -> None:
    """Each run's way, from the weights it kept to its last ones, over the loss in its plane."""
    import torch
    from rich.console import Console
    from torch.nn.functional import cross_entropy

    from sgdf.analysis import figures, landscape
    from sgdf.lab.runs.disk import find_checkpoint, kept_epochs, require_checkpoint
    from sgdf.support.files import explained

    console, device = Console(), device_from(options)
    for subject in find_subjects(options.runs):
        epochs = kept_epochs(subject.folder)
        if len(epochs) < 2:
            raise UserError(
                f"{subject.folder} has kept the weights of {len(epochs)} epochs, a plane takes two "
                "or more: train the run with --keep N"
            )
        model, data = open_run(subject, options, device)
        files = [find_checkpoint(subject.folder, epoch) for epoch in epochs]
        weights = (require_checkpoint(file, torch.device("cpu"))["model"] for file in files)
        stem = options.out / f"path-{subject.name}"
        with in_a_sentence(subject.folder), explained(options.out):
            path = landscape.path(model, weights)
            found = landscape.path_surface(
                model, cross_entropy, data, path, size=options.size, save=f"{stem}.npz"
            )
        first, second = (100 * part for part in path.explained)
        say(console, f"{subject.label}: {first:.0f} and {second:.0f} % of the squared distances "
            f"from the end; loss {found.loss:.5g} there; {found.seconds:.0f} s\n"
            f"  in {stem}.npz")  # fmt: skip
        about = {"epochs": epochs, "points": path.points, "explained": path.explained}
        about |= {**found.about(), **circumstances(subject, options, device)}
        note(Path(f"{stem}.json"), about)
        say(console, f"  in {stem}.json")
        if options.size > 1:
            draw(console, figures.path_contours(found, path, subject.label), stem)


# --- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """What is looked at: a run as it stands, or after one of its epochs."""

    folder: Path
    config: "Config"
    epoch: int | None
    label: str

    @property
    def name(self) -> str:
        """Of its files."""
        return self.config.name + ("" if self.epoch is None else f"-epoch{self.epoch}")


def find_subjects(folders: Sequence[Path], epochs: Sequence[int] | None = None) -> list[Subject]:
    """All of them, before the work on the first begins."""
    from sgdf.lab.runs.disk import find_checkpoint, read_config

    configs = [read_config(folder) for folder in folders]
    wanted: list[int | None] = list(dict.fromkeys(epochs or ())) or [None]
    subjects = [
        Subject(folder, config, epoch, label + ("" if epoch is None else f", epoch {epoch}"))
        for folder, config, label in zip(folders, configs, labels(configs), strict=True)
        for epoch in wanted
    ]
    for subject in subjects:
        check_kind(subject.config)
        find_checkpoint(subject.folder, subject.epoch)
    if len({subject.name for subject in subjects}) < len(subjects):
        raise UserError("the same run is named twice")
    return subjects


def labels(configs: "Sequence[Config]") -> list[str]:
    """The optimizer, and as much beside it as tells the runs apart."""
    from sgdf.report.labels import settings_words

    said = [[c.optimizer] for c in configs]
    for further in (
        lambda c: settings_words(c, [rival for rival in configs if rival.optimizer == c.optimizer]),
        lambda c: [f"seed {c.seed}"],
        lambda c: [c.task, c.model],
        lambda c: [c.name.rpartition("-")[2]],
    ):
        if len({tuple(words) for words in said}) == len(said):
            break
        said = [[*words, *further(c)] for words, c in zip(said, configs, strict=True)]
    return [", ".join(words) for words in said]


def open_run(
    subject: Subject, options: argparse.Namespace, device: "torch.device"
) -> "tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]":
    """The model with the subject's weights, and its training images without augmentation."""
    import torch

    from sgdf.lab import data, models
    from sgdf.lab.runs.disk import find_checkpoint, require_checkpoint
    from sgdf.lab.train.pipelines.resident import Images, hold_out

    config = subject.config
    checkpoint = require_checkpoint(find_checkpoint(subject.folder, subject.epoch), device)
    dataset = data.load(config.task, options.data_dir, synthetic=config.data == "synthetic")
    training = hold_out(dataset.train, config.validation)[0] if config.validation else dataset.train
    _, channels, height, width = training.images.shape
    with torch.random.fork_rng(devices=[]):
        model = models.build(config.model, classes=dataset.classes, shape=(channels, height, width))
    model.load_state_dict(checkpoint["model"])
    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    there = Images(training, dataset, device)
    order = torch.randperm(len(there), generator=torch.Generator().manual_seed(0))
    chosen = order[: options.images].sort().values.to(device)
    parts = torch.split(chosen, options.batch)
    pairs = [(there.normalised(there.pixels[i]), there.labels[i]) for i in parts]
    return model, pairs


def check_kind(config: "Config") -> None:
    """The instruments of the command look at networks of the lab on images that fit in memory."""
    from sgdf.lab import tasks

    if tasks.find(config.task).kind != "classify":
        fitting = ", ".join(task.name for task in tasks.TASKS.values() if task.kind == "classify")
        raise UserError(
            f"sgdf analyze looks at runs of {fitting}, not of {config.task}; sgdf.analysis takes "
            "any model, loss and data"
        )


def device_from(options: argparse.Namespace) -> "torch.device":
    from sgdf.cli.options import find_device

    return find_device(options.device)


@contextlib.contextmanager
def in_a_sentence(folder: Path) -> Iterator[None]:
    """What an instrument refuses, and of which run."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{folder}: {error}") from error


# --- what is left behind -------------------------------------------------------------------------


def circumstances(
    subject: Subject, options: argparse.Namespace, device: "torch.device"
) -> dict[str, Any]:
    from sgdf.support.provenance import commit, machine

    return {
        "run": str(subject.folder),
        "command": options.typed,
        "commit": commit(),
        "machine": machine(device.type),
    }


def note(file: Path, values: dict[str, Any]) -> None:
    from sgdf.support.files import explained, write_atomically

    with explained(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(values, default=lambda array: array.tolist()) + "\n")


def draw(console: "Console", figure: Any, stem: Path) -> None:
    from sgdf.support import figures
    from sgdf.support.files import explained

    with explained(stem.parent):
        files = figures.write(figure, stem)
    for file in files:
        say(console, f"  in {file}")

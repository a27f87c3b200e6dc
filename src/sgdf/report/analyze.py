"""`sgdf analyze`: the instruments on runs of the lab. Heavy imports wait until a command runs.

A run's last checkpoint is looked at on its training images, without augmentation, and its loss is
the cross-entropy alone: weight decay is no part of it.
"""

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sgdf.lab.errors import LabError

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from sgdf.lab.config import Config

IMAGES = 2000
# Images that are on their way through the network at once. Second derivatives take more memory.
HESSIAN_BATCH, LANDSCAPE_BATCH = 200, 1000


def add_arguments(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommands `hessian` and `landscape`."""
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
    for parser, batch in ((hessian, HESSIAN_BATCH), (landscape, LANDSCAPE_BATCH)):
        add = parser.add_argument
        add("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs; several are "
            "drawn side by side")  # fmt: skip
        add("--images", type=images, default=IMAGES, metavar="N", help="training images, always "
            "the same ones, or all (default %(default)s)")  # fmt: skip
        add("--batch", type=positive, default=batch, metavar="N", help="images at once: fewer take "
            "less memory, and change nothing else (default %(default)s)")  # fmt: skip
        add("--seed", type=int, default=0, help="of the random directions (default %(default)s)")
        add("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
        add("--out", type=Path, default=Path("analysis"), metavar="DIR", help="default %(default)s")
        add("--data-dir", type=Path, metavar="DIR", help="default $SGDF_DATA or ~/.cache/sgdf/data")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


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
    configs = read_configs(options.runs)
    spectra = {}
    for folder, label in zip(options.runs, labels(configs), strict=True):
        model, data, config = open_run(folder, options, device)
        with in_a_sentence(folder):
            found = hessian.spectrum(
                *(model, cross_entropy, data),
                k=options.k,
                trace_samples=options.trace_samples,
                density=not options.no_density,
                seed=options.seed,
            )
        spectra[label] = found
        say(console, f"{label}: largest eigenvalue {found.largest:.5g}, trace {found.trace:.5g} "
            f"± {found.trace_standard_error:.2g} (standard error), {found.products} products "
            f"in {found.seconds:.0f} s")  # fmt: skip
        file = options.out / f"hessian-{config.name}.json"
        note(file, {**dataclasses.asdict(found), **circumstances(folder, options, device)})
        say(console, f"  in {file}")
    say(console, f"Hessian of the mean cross-entropy over {found.images} training images; "
        f"{found.mode}")  # fmt: skip
    stem = f"hessian-{configs[0].name}" if len(configs) == 1 else "hessian"
    draw(console, figures.eigenvalues(spectra), options.out / stem)
    if not options.no_density:
        draw(console, figures.density(spectra), options.out / f"{stem}-density")


def run_landscape(options: argparse.Namespace) -> None:
    """Measure each run's surface, going on where an earlier call stopped, and draw them all."""
    from rich.console import Console
    from torch.nn.functional import cross_entropy

    from sgdf.analysis import figures, landscape
    from sgdf.lab.runs import explained

    console, device = Console(), device_from(options)
    configs = read_configs(options.runs)
    kind = "line" if options.dimensions == 1 else "landscape"
    surfaces = {}
    for folder, label in zip(options.runs, labels(configs), strict=True):
        model, data, config = open_run(folder, options, device)
        file = options.out / f"{kind}-{config.name}.npz"
        with in_a_sentence(folder), explained(options.out):
            found = landscape.surface(
                *(model, cross_entropy, data),
                size=options.size,
                span=options.span,
                dimensions=options.dimensions,
                seed=options.seed,
                save=file,
            )
        surfaces[label] = found
        say(console, f"{label}: loss {found.loss:.5g}, up to {found.values.max():.5g} on the grid; "
            f"{found.seconds:.0f} s\n  in {file}")  # fmt: skip
    say(console, f"Mean cross-entropy over {found.images} training images; {found.mode}")
    stem = options.out / (f"{kind}-{configs[0].name}" if len(configs) == 1 else kind)
    if options.dimensions == 1:
        draw(console, figures.profiles(surfaces), stem)
    elif options.size > 1:
        draw(console, figures.contours(surfaces), stem)
        draw(console, figures.relief(surfaces), stem.with_name(stem.name + "-3d"))


# --- runs ----------------------------------------------------------------------------------------


class Opened(NamedTuple):
    model: "nn.Module"
    data: "list[tuple[torch.Tensor, torch.Tensor]]"
    config: "Config"


def read_configs(folders: Sequence[Path]) -> "list[Config]":
    """Of all runs, before the work on the first begins."""
    from sgdf.lab.runs import read_config

    found = []
    for folder in folders:
        found.append(read_config(folder))
        if not (folder / "last.pt").exists():
            raise LabError(f"{folder} has no checkpoint yet: train the run first")
    if len({config.name for config in found}) < len(found):
        raise LabError("the same run is named twice")
    return found


def labels(configs: "Sequence[Config]") -> list[str]:
    """The optimizer, and as much beside it as tells the runs apart."""
    from sgdf.report.records import settings_words

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


def open_run(folder: Path, options: argparse.Namespace, device: "torch.device") -> Opened:
    """The model at the run's last checkpoint, and its training images without augmentation."""
    import torch

    from sgdf.lab import data, models
    from sgdf.lab.batches import Images, hold_out
    from sgdf.lab.runs import Damaged, read_checkpoint, read_config

    config = read_config(folder)
    check_kind(config)
    try:
        checkpoint = read_checkpoint(folder / "last.pt", device)
    except Damaged as error:
        raise LabError(f"{folder / 'last.pt'} is damaged ({error}): train the run again") from None
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
    return Opened(model, pairs, config)


def check_kind(config: "Config") -> None:
    """The instruments of the command look at networks of the lab on images that fit in memory."""
    from sgdf.lab import tasks

    if tasks.find(config.task).kind != "classify":
        fitting = ", ".join(task.name for task in tasks.TASKS.values() if task.kind == "classify")
        raise LabError(
            f"sgdf analyze looks at runs of {fitting}, not of {config.task}; sgdf.analysis takes "
            "any model, loss and data"
        )


def device_from(options: argparse.Namespace) -> "torch.device":
    from sgdf.lab.train import find_device

    return find_device(options.device)


@contextlib.contextmanager
def in_a_sentence(folder: Path) -> Iterator[None]:
    """What an instrument refuses, and of which run."""
    try:
        yield
    except ValueError as error:
        raise LabError(f"{folder}: {error}") from error


# --- what is left behind -------------------------------------------------------------------------


def circumstances(
    folder: Path, options: argparse.Namespace, device: "torch.device"
) -> dict[str, Any]:
    from sgdf.lab.provenance import commit, machine

    return {
        "run": str(folder),
        "command": options.typed,
        "commit": commit(),
        "machine": machine(device.type),
    }


def note(file: Path, values: dict[str, Any]) -> None:
    from sgdf.lab.runs import explained, write_atomically

    with explained(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(values, default=lambda array: array.tolist()) + "\n")


def draw(console: "Console", figure: Any, stem: Path) -> None:
    from sgdf.analysis import figures
    from sgdf.lab.runs import explained

    with explained(stem.parent):
        files = figures.write(figure, stem)
    for file in files:
        say(console, f"  in {file}")


def say(console: "Console", text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)

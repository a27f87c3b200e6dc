"""`sgdf analyze gradients --errors`: errors of gradient estimates about the true gradient."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.cli.analyze import starts, subjects
from sgdf_lab.cli.analyze.output import origin, refusals, save_figure, save_numbers
from sgdf_lab.support.tables import Column, as_rich

if TYPE_CHECKING:
    import torch
    from rich.console import Console, Group

    from sgdf_lab.data import Dataset
    from sgdf_lab.instruments.error_statistics import EstimatorErrors
    from sgdf_lab.runs.config import Config

MEASUREMENTS = 20  # along a training


def check(
    options: argparse.Namespace, epoch: int | None, dataset: "Dataset", device: "torch.device"
) -> None:
    """Refuse what cannot be measured before the first step is taken."""
    from sgdf_lab.instruments import estimators

    config, model = starts.error_start(options, epoch, dataset, device)
    with refusals(f"the errors of {config.model} cannot be measured"):
        estimators.check_arguments(model, options.steps, 1, options.replicas, ())


def measure(
    options: argparse.Namespace,
    epoch: int | None,
    dataset: "Dataset",
    device: "torch.device",
    console: "Console",
) -> "EstimatorErrors":
    """Measure errors along a training, print their table, write JSON and a figure."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import estimators, figures

    config, model = starts.error_start(options, epoch, dataset, device)
    training = subjects.training_images(config, dataset)
    data = subjects.choose_images(training, dataset, device, options.images, batch=None)
    with refusals(f"the errors of {config.model} cannot be measured"):
        errors = estimators.estimator_errors(
            *(model, cross_entropy, data),
            optimizer_factory=lambda params: starts.optimizer_for(config, params, device),
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
    from sgdf_lab.instruments.figures.errors import ESTIMATOR_LOOKS

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

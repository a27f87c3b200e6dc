"""Where trainings under observation start: at a task's first step, or at a run's checkpoint."""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.cli.analyze.subjects import model_for, training_images
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from sgdf_lab.data import Dataset
    from sgdf_lab.runs.config import Config
    from sgdf_lab.train.pipelines.resident import ResidentBatches


def make_configs(options: argparse.Namespace, *optimizers: str) -> "dict[str, Config]":
    """The published settings of every optimizer, with the task, model, seed and batch of the run
    if a run was given; options override both.
    """
    from sgdf_lab.runs import config as configs
    from sgdf_lab.runs.disk import read_config

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


def initial_model(config: "Config", dataset: "Dataset", device: "torch.device") -> "nn.Module":
    """The network of a run with these settings, before its first step."""
    import torch

    from sgdf_lab.train.batches import seed_for

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", config.seed))
        model = model_for(config, dataset)
    return model.to(device).train()


class FirstSteps:
    """The first steps of one optimizer, with the weights and batches of the config's seed."""

    def __init__(self, config: "Config", dataset: "Dataset", device: "torch.device") -> None:
        import torch

        from sgdf_lab.train.batches import seed_for
        from sgdf_lab.train.pipelines.resident import ResidentBatches

        torch.manual_seed(seed_for("dropout", config.seed))
        self.model = initial_model(config, dataset, device)
        self.optimizer = optimizer_for(config, self.model.named_parameters(), device)
        augmented = config.task_definition.augmented
        training = training_images(config, dataset)
        epochs = ResidentBatches(training, dataset, device, seed=config.seed, augmented=augmented)
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

    from sgdf_lab.train.batches import batch_sizes

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
    from sgdf_lab.runs.disk import find_checkpoint, read_config, require_checkpoint

    config = make_configs(options, options.errors)[options.errors]
    model = initial_model(config, dataset, device)
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

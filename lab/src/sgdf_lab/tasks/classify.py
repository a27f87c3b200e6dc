"""Small images sorted into classes: the paper's CIFAR tables, and all that is trained like them."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgdf_lab import data, models, tasks
from sgdf_lab.data import Dataset, Split
from sgdf_lab.support.errors import UserError
from sgdf_lab.training.batches import Batches
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team, unsharded
from sgdf_lab.training.images import ResidentBatches, ResidentImages, hold_out
from sgdf_lab.training.loop import HessianTrainer, Trainer

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if the data is missing."""
    load_dataset(config.task, data_dir, config.data == "synthetic")


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = SINGLE_PROCESS,
) -> Trainer:
    dataset = load_dataset(config.task, data_dir, config.data == "synthetic")
    return resident_classifier(config, dataset, device, compile=compile, team=team)


@functools.lru_cache(maxsize=1)  # runs together, and one after another, mostly share it
def load_dataset(task: str, data_dir: Path | None, synthetic: bool) -> Dataset:
    return data.load(tasks.find(task).dataset, data_dir, synthetic=synthetic)


def resident_classifier(
    config: "Config",
    dataset: Dataset,
    device: torch.device,
    *,
    compile: bool = True,
    team: Team = SINGLE_PROCESS,
) -> "Classifier":
    """The trainer for a dataset that is small enough to stay on the device."""
    training, evaluation = splits(config, dataset)
    return Classifier(
        config,
        tasks.channels_last(initial_model(config, dataset), device),
        resident_batches(config, training, dataset, device),
        {name: ResidentImages(split, dataset, device) for name, split in evaluation.items()},
        device,
        compile=compile,
        team=team,
    )


def initial_model(config: "Config", dataset: Dataset) -> nn.Module:
    """The network of a run before its first step."""
    _, channels, height, width = dataset.train.images.shape
    shape = channels, height, width
    with tasks.weights_by_seed(config):
        return models.build_classifier(config.model, classes=dataset.classes, shape=shape)


def resident_batches(
    config: "Config", training: Split, dataset: Dataset, device: torch.device
) -> ResidentBatches:
    augmented = config.task_definition.augmented
    return ResidentBatches(training, dataset, device, seed=config.seed, augmented=augmented)


def splits(config: "Config", dataset: Dataset) -> tuple[Split, dict[str, Split]]:
    """The images to train on, and those to evaluate on by name: test, and validation if any."""
    training, evaluation = dataset.train, {"test": dataset.test}
    if config.validation:
        check_validation(config, len(training.labels))
        training, evaluation["validation"] = hold_out(training, config.validation)
    return training, evaluation


def check_validation(config: "Config", images: int) -> None:
    if config.validation >= images:
        raise UserError(f"validation takes all {images} training images")


class EvaluationImages(Protocol):
    """Images to evaluate on, resident or decoded."""

    def __len__(self) -> int: ...

    def batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The `count` images from `first` on, normalised, and their labels, in batches."""


class Classifier(HessianTrainer):
    """Learns classes by cross entropy; evaluated by the number of right answers."""

    counts_correct = True
    smoothing = 0.0  # of labels: the part that is spread over all classes

    def __init__(
        self,
        config: "Config",
        model: nn.Module,
        batches: Batches,
        evaluation: Mapping[str, EvaluationImages],
        device: torch.device,
        **more: Any,
    ) -> None:
        super().__init__(config, model, batches, device, **more)
        self.evaluation = evaluation
        keys = {metric.key for metric in config.task_definition.metrics}
        self.counts_top5 = "test_top5_accuracy" in keys

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        images, labels = self.batches.take(position, size)
        with self._autocast():
            logits = self.model(images)
        loss = F.cross_entropy(
            logits.float(), labels, reduction="sum", label_smoothing=self.smoothing
        )
        return loss, (logits.argmax(1) == labels).sum()

    # --- evaluation -----------------------------------------------------------------------------

    def evaluated(self) -> int:
        return sum(len(images) for images in self.evaluation.values())

    def _predict(self, images: Tensor) -> Tensor:
        """Logits for evaluation."""
        logits: Tensor = self.model(images)
        return logits

    def _evaluate(self) -> dict[str, tuple[Tensor, float]]:
        measured = {}
        self.model.eval()
        with unsharded(self.model):
            for name, images in self.evaluation.items():
                work = functools.partial(self._evaluate_on, images)
                loss, correct, top5 = self.graphs.run(name, work) if self.graphs else work()
                measured[f"{name}_loss"] = loss, float(len(images))
                measured[f"{name}_accuracy"] = 100 * correct, float(len(images))
                if self.counts_top5:
                    measured[f"{name}_top5_accuracy"] = 100 * top5, float(len(images))
        self.model.train()
        return measured

    @torch.no_grad()
    def _evaluate_on(self, images: EvaluationImages) -> tuple[Tensor, Tensor, Tensor]:
        """Sum of losses, right answers, and answers that are among the five most likely."""
        loss = torch.zeros((), device=self.device)
        correct, top5 = torch.zeros((2,), dtype=torch.int64, device=self.device)
        for pixels, labels in images.batches(*self.team.share(len(images))):
            with self._autocast():
                logits = self._predict(pixels)
            loss += F.cross_entropy(logits.float(), labels, reduction="sum")
            correct += (logits.argmax(1) == labels).sum()
            if self.counts_top5:
                first = logits.topk(min(5, logits.shape[1])).indices
                top5 += (first == labels[:, None]).sum()
        return loss, correct, top5

"""Images sorted into classes: the paper's CIFAR tables, and all that is trained like them."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgdf.lab import data, models, tasks
from sgdf.lab.data import Dataset, Split
from sgdf.lab.runs.config import Config
from sgdf.lab.train.distributed import ALONE, Team, whole_weights
from sgdf.lab.train.loop import Batches, Trainer, piece_sizes
from sgdf.lab.train.pipelines.resident import Epochs, Images, hold_out, seed_for
from sgdf.support.errors import UserError


def check(config: Config, data_dir: Path | None) -> None:
    """Whether the data is there; what is wrong is said in one sentence."""
    load_dataset(config.task, data_dir, config.data == "synthetic")


def build(
    config: Config,
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = ALONE,
) -> Trainer:
    dataset = load_dataset(config.task, data_dir, config.data == "synthetic")
    return resident(config, dataset, device, compile=compile, team=team)


@functools.lru_cache(maxsize=1)  # runs together, and one after another, mostly share it
def load_dataset(task: str, data_dir: Path | None, synthetic: bool) -> Dataset:
    return data.load(tasks.find(task).dataset, data_dir, synthetic=synthetic)


def resident(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    *,
    compile: bool = True,
    team: Team = ALONE,
) -> "Classifier":
    """The trainer of a data set that is small enough to stay on the device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", config.seed))
        _, channels, height, width = dataset.train.images.shape
        shape = channels, height, width
        model = models.build_classifier(config.model, classes=dataset.classes, shape=shape)
    training, judged = splits(config, dataset)
    augmented = tasks.find(config.task).augmented
    batches = Epochs(training, dataset, device, seed=config.seed, augmented=augmented)
    return Classifier(
        config,
        model.to(device).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        batches,
        {name: Images(split, dataset, device) for name, split in judged.items()},
        device,
        compile=compile,
        team=team,
    )


def splits(config: Config, dataset: Dataset) -> tuple[Split, dict[str, Split]]:
    """What is trained on, and what it is judged by."""
    training, judged = dataset.train, {"test": dataset.test}
    if config.validation:
        check_validation(config, len(training.labels))
        training, judged["validation"] = hold_out(training, config.validation)
    return training, judged


def check_validation(config: Config, images: int) -> None:
    if config.validation >= images:
        raise UserError(f"validation takes all {images} training images")


class Judged(Protocol):
    """Images to judge by."""

    def __len__(self) -> int: ...

    def batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The `count` images from `first` on, and their labels, in pieces."""


class Classifier(Trainer):
    """Learns classes by cross entropy, and is judged by how many answers are right."""

    counts_answers = True

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        batches: Batches,
        judged: Mapping[str, Judged],
        device: torch.device,
        *,
        compile: bool = True,
        team: Team = ALONE,
    ) -> None:
        super().__init__(config, model, batches, device, compile=compile, team=team)
        self.judged = judged
        keys = {metric.key for metric in tasks.find(config.task).metrics}
        self.counts_top5 = "test_top5_accuracy" in keys

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        images, labels = self.batches.take(position, size)
        with self._autocast():
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels, reduction="sum")
        return loss, (logits.argmax(1) == labels).sum()

    def _do_more(self, size: int) -> None:
        """Sophia's estimate: the gradient for labels drawn from the model's own answers."""
        if self.team.shards:
            raise UserError(f"{self.config.optimizer} does not go with --shard")
        self.optimizer.zero_grad(set_to_none=True)
        start, mine = self.team.share(size)
        position = self.batches.position - size + start
        for piece in piece_sizes(mine, self.config.accumulate):
            images, _ = self.batches.take(position, piece)
            with self._autocast():
                logits = self.model(images)
            logits = logits.float()
            # The largest of logits plus Gumbel noise is a draw from their softmax.
            noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-20, 1 - 1e-7)))
            drawn = (logits.detach() + noise).argmax(1)
            (F.cross_entropy(logits, drawn, reduction="sum") / size).backward()
            position = position + piece
        self.team.sum_(self._grads())
        self.optimizer.update_hessian(size)  # type: ignore[attr-defined]

    def _judge(self) -> dict[str, tuple[Tensor, float]]:
        found = {}
        self.model.eval()
        with whole_weights(self.model):
            for name, images in self.judged.items():
                judge = functools.partial(self._judge_all, images)
                loss, correct, top5 = self.graphs.run(name, judge) if self.graphs else judge()
                found[f"{name}_loss"] = loss, float(len(images))
                found[f"{name}_accuracy"] = 100 * correct, float(len(images))
                if self.counts_top5:
                    found[f"{name}_top5_accuracy"] = 100 * top5, float(len(images))
        self.model.train()
        return found

    @torch.no_grad()
    def _judge_all(self, images: Judged) -> tuple[Tensor, Tensor, Tensor]:
        """Sum of the losses, number of right answers, and of those among the first five."""
        loss = torch.zeros((), device=self.device)
        correct, top5 = torch.zeros((2,), dtype=torch.int64, device=self.device)
        for pixels, labels in images.batches(*self.team.share(len(images))):
            with self._autocast():
                logits = self.model(pixels)
            loss += F.cross_entropy(logits.float(), labels, reduction="sum")
            correct += (logits.argmax(1) == labels).sum()
            if self.counts_top5:
                first = logits.topk(min(5, logits.shape[1])).indices
                top5 += (first == labels[:, None]).sum()
        return loss, correct, top5

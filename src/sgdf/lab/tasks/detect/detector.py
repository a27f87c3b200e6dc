"""Objects found in images: Faster-RCNN on PASCAL VOC, the paper's detection table."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sgdf.lab.data import voc, voc_synthetic
from sgdf.lab.data.voc import Example, Voc
from sgdf.lab.models import detectors
from sgdf.lab.runs.config import Config
from sgdf.lab.tasks.detect import average_precision, drawing
from sgdf.lab.tasks.detect.average_precision import Detections
from sgdf.lab.train.distributed import ALONE, Team
from sgdf.lab.train.loop import Trainer, batch_sizes
from sgdf.lab.train.pipelines.resident import seed_for
from sgdf.support.errors import UserError, unknown

READERS = 2  # threads that decode images while the model computes
AHEAD = 8  # images that are ready before they are needed
SHOWN = 6  # images in the picture


def check(config: Config, data_dir: Path | None) -> None:
    """Whether data and weights are there."""
    official = wants_official(config)
    if config.data == "real":
        voc.lists_in(data_dir, official=official)
    detectors.weights_file(config.model, config.option("weights"))


def build(
    config: Config,
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = ALONE,
) -> "Detector":
    """Not compiled, whatever is asked for: no two batches have the same shape."""
    file = detectors.weights_file(config.model, config.option("weights"))
    dataset = load_dataset(data_dir, config.data == "synthetic", wants_official(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", config.seed))
        model = detectors.build_detector(config.model, classes=len(voc.CLASSES), file=file)
    return Detector(config, model.to(device), dataset, device, team=team)


def wants_official(config: Config) -> bool:
    """Whether the lists of images have to be whole."""
    said, kinds = config.option("lists"), ("official", "any")
    if said not in kinds:
        raise unknown("kind of lists", str(said), kinds)
    return bool(said == "official")


@functools.lru_cache(maxsize=1)  # the runs of a sweep share it
def load_dataset(data_dir: Path | None, synthetic: bool, official: bool) -> Voc:
    return voc_synthetic.make_voc() if synthetic else voc.load(data_dir, official=official)


# --- images, one after another --------------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")


def prepared(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The results in the order of the items, some of them computed ahead by threads."""
    with ThreadPoolExecutor(READERS) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Stream:
    """The training images of this process in the epoch's order, mirrored by the flip of a coin."""

    resident = False

    def __init__(
        self, examples: Sequence[Example], device: torch.device, *, config: Config, team: Team
    ) -> None:
        self.examples, self.device, self.config, self.team = examples, device, config, team
        self.position = torch.zeros((), dtype=torch.int64)
        self.images: Iterator[tuple[int, Tensor, Tensor, Tensor]] = iter(())

    def __len__(self) -> int:
        return len(self.examples)

    def draw(self, epoch: int) -> None:
        """An order takes no time to draw."""

    def begin(self, epoch: int) -> None:
        random = np.random.default_rng(seed_for("data", self.config.seed, epoch))
        order = random.permutation(len(self))
        flips = random.integers(0, 2, len(self))  # a coin for every image

        def read(place: int) -> tuple[int, Tensor, Tensor, Tensor]:
            index = order[place]
            return (place, *training_view(self.examples[index], bool(flips[index])))

        self.images = prepared(read, self.places())
        self.position.zero_()

    def places(self) -> Iterator[int]:
        """Of this process's shares of all batches, in the order of an epoch."""
        first = 0
        for size in batch_sizes(len(self), self.config.batch):
            start, count = self.team.share(size)
            yield from range(first + start, first + start + count)
            first += size

    def take(self, position: Tensor, size: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """Images between 0 and 1, and their objects, as torchvision wants them."""
        images, targets = [], []
        for place in range(int(position), int(position) + size):
            here, pixels, boxes, labels = next(self.images)
            assert here == place, "images are taken in order"
            images.append(pixels.to(self.device).float() / 255)
            targets.append({"boxes": boxes.to(self.device), "labels": labels.to(self.device)})
        return images, targets


def training_view(example: Example, flip: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels, boxes and labels of the objects that are not difficult."""
    pixels, kept = example.pixels(), ~example.difficult
    boxes = example.boxes[kept]
    if flip:
        width = pixels.shape[2]
        left, top, right, bottom = boxes.unbind(1)
        pixels, boxes = pixels.flip(2), torch.stack([width - right, top, width - left, bottom], 1)
    return pixels, boxes, example.labels[kept]


# --- the trainer ----------------------------------------------------------------------------------


class Detector(Trainer):
    """Learns to find objects, and is judged by mean average precision."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        dataset: Voc,
        device: torch.device,
        *,
        team: Team = ALONE,
    ) -> None:
        if team.shards:
            raise UserError(f"{config.task} does not go with --shard: leave it out")
        if config.precision == "bf16":
            raise UserError("boxes need more digits than bf16 has: --precision tf32 or fp32")
        training, self.judged = split(dataset, config.validation)
        batches = Stream(training, device, config=config, team=team)
        super().__init__(config, model, batches, device, compile=False, team=team)
        if hasattr(self.optimizer, "hessian_every"):
            raise UserError(f"{config.optimizer} needs a task with classes")
        if self.on_gpu:
            torch.backends.cudnn.benchmark = False  # it pays for shapes that come again
        if dataset.left_out:
            self.notes = (
                f"{config.task}: {dataset.left_out} training images are left out, since they "
                "have no object that is not difficult",
            )
        self.found: list[Detections] = []  # in the test images, after the last epoch

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The model looks at some of its proposals, drawn at random.

        Which ones depends on seed, epoch and the first image alone: with an image in each piece
        of a batch, any number of processes draws the same.
        """
        images, targets = self.batches.take(position, size)
        torch.manual_seed(seed_for("proposals", self.config.seed, self.done) + int(position))
        losses: dict[str, Tensor] = self.model(images, targets)
        total = torch.stack([*losses.values()]).sum()
        return size * total, torch.zeros((), dtype=torch.int64, device=self.device)

    def metrics(self) -> dict[str, Any]:
        result = super().metrics()
        if not np.isfinite(result["train_loss"]):
            return result  # diverged: there is nothing to find
        for name, examples in self.judged.items():
            found = self._detect(examples)
            if name == "test":
                self.found = found
            scores = judge(found, examples) if self.team.rank == 0 else None
            values: dict[str, float] = self.team.first_says(scores)
            result |= {f"{name}_{key}": value for key, value in values.items()}
        return result

    @torch.no_grad()
    def _detect(self, examples: Sequence[Example]) -> list[Detections]:
        """One image at a time, so that no result depends on what else is in a batch."""
        first, count = self.team.share(len(examples))
        self.model.eval()
        mine = []
        for pixels in prepared(lambda e: e.pixels(), examples[first : first + count]):
            (found,) = self.model([pixels.to(self.device).float() / 255])
            mine.append(Detections(*(found[k].cpu() for k in ("boxes", "labels", "scores"))))
        self.model.train()
        return [found for part in self.team.all_say(mine) for found in part]

    def pictures(self) -> dict[str, bytes]:
        """A few test images, always the same, with what was found in them."""
        if self.team.rank > 0:
            return {}
        examples = self.judged["test"]
        count = min(SHOWN, len(examples))
        chosen = [i * len(examples) // count for i in range(count)]
        pairs = [(examples[i], self.found[i]) for i in chosen]
        return {"detections.png": drawing.draw(pairs)}


def split(dataset: Voc, validation: int) -> tuple[Sequence[Example], Mapping[str, Any]]:
    """What to train on, and what to judge by: as many held out as asked for, always the same."""
    training = dataset.train
    if not validation:
        return training, {"test": dataset.test}
    if validation >= len(training):
        raise UserError(f"validation takes all {len(training)} training images")
    order = np.random.default_rng(0).permutation(len(training))
    held, kept = sorted(order[:validation]), sorted(order[validation:])
    judged = {"test": dataset.test, "validation": [training[i] for i in held]}
    return [training[i] for i in kept], judged


def judge(found: Sequence[Detections], examples: Sequence[Example]) -> dict[str, float]:
    voc_ap = average_precision.voc2007(found, examples)
    return {**average_precision.coco(found, examples), "voc_ap": voc_ap}

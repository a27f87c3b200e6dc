"""The trainer for object detection: the paper's Faster-RCNN on PASCAL VOC."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sgdf_lab import tasks
from sgdf_lab.data.dataset import check_fingerprint, data_folder
from sgdf_lab.paper.detection import detections as detected
from sgdf_lab.paper.detection import faster_rcnn, voc
from sgdf_lab.paper.detection.detections import Detections
from sgdf_lab.paper.detection.voc import Example, Voc
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.training.batches import batch_sizes, digest_of, seed_for
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.loop import Trainer

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

READERS = 2  # threads that decode images while the model computes
AHEAD = 8  # images that may be decoded before they are needed
SHOWN = 6  # images in the picture


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if data or weights are missing."""
    lists, kinds = config.option("lists"), ("official", "any")
    if lists not in kinds:
        raise unknown("kind of lists", str(lists), kinds)
    if class_names(config) != voc.CLASSES:
        check_own(config, data_dir)
    elif config.data == "real":
        voc.lists_in(data_dir, official=lists == "official")
    faster_rcnn.weights_file(config.model, config.option("weights"))


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = SINGLE_PROCESS,
) -> "Detector":
    """`compile` has no effect: no two batches have the same shape."""
    check(config, data_dir)
    classes, official = class_names(config), config.option("lists") == "official"
    dataset = load_dataset(data_dir, config.data == "synthetic", official, classes)
    with tasks.weights_by_seed(config):
        file = faster_rcnn.weights_file(config.model, config.option("weights"))
        model = faster_rcnn.build_detector(config.model, classes=len(classes), file=file)
    return Detector(config, model.to(device), dataset, device, team=team)


def class_names(config: "Config") -> tuple[str, ...]:
    """VOC's, or a user's own, as `identify` has recorded them."""
    names = config.option("names")
    if isinstance(names, str):
        raise UserError("this run does not know its data: give data_dir where its config is made")
    if names is not None and not (
        isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    ):
        raise UserError(f"names is a file with class names, one per line, not {names!r}")
    return voc.CLASSES if names is None else tuple(names)


def check_own(config: "Config", data_dir: Path | None) -> None:
    """Refuse other images than those by which the run was named."""
    if config.data == "synthetic":
        raise UserError("synthetic images have the classes of VOC: leave out names=...")
    files = voc.named_files(data_dir)
    check_fingerprint(config.option("fingerprint"), files, data_folder(data_dir))


@functools.lru_cache(maxsize=1)  # the runs of a sweep share it
def load_dataset(
    data_dir: Path | None,
    synthetic: bool,
    official: bool,
    classes: tuple[str, ...] = voc.CLASSES,
) -> Voc:
    if synthetic:
        return voc.make_voc()
    return voc.load(data_dir, official=official, classes=classes)


# --- batches of images of any size ----------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`map` whose results, in the same order, are computed ahead by threads."""
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


class DetectionBatches:
    """This process's training images in the epoch's order, each mirrored with probability 1/2."""

    resident = False

    def __init__(
        self, examples: Sequence[Example], device: torch.device, *, config: "Config", team: Team
    ) -> None:
        self.examples, self.device, self.config, self.team = examples, device, config, team
        self.position = torch.zeros((), dtype=torch.int64)
        self.images: Iterator[tuple[int, Tensor, Tensor, Tensor]] = iter(())

    def __len__(self) -> int:
        return len(self.examples)

    def fingerprint(self) -> str:
        """A hash of names and objects: the files are too many to read."""
        names = np.array([example.path.name for example in self.examples])
        boxes = (part.numpy() for e in self.examples for part in (e.boxes, e.labels))
        return digest_of(names, *boxes)

    def draw(self, epoch: int) -> None:
        """Nothing to prepare: an order takes no time to draw."""

    def begin(self, epoch: int) -> None:
        random = np.random.default_rng(seed_for("data", self.config.seed, epoch))
        order = random.permutation(len(self))
        flips = random.integers(0, 2, len(self))

        def read(place: int) -> tuple[int, Tensor, Tensor, Tensor]:
            index = order[place]
            return (place, *training_view(self.examples[index], bool(flips[index])))

        self.images = map_ahead(read, self.places())
        self.position.zero_()

    def places(self) -> Iterator[int]:
        """Positions in the epoch's order that are this process's share."""
        first = 0
        for size in batch_sizes(len(self), self.config.batch):
            start, count = self.team.share(size)
            yield from range(first + start, first + start + count)
            first += size

    def take(self, position: Tensor, size: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """Images between 0 and 1, and their objects, in torchvision's form."""
        images, targets = [], []
        for place in range(int(position), int(position) + size):
            ready, pixels, boxes, labels = next(self.images)
            assert ready == place, "images are taken in order"
            images.append(pixels.to(self.device).float() / 255)
            targets.append({"boxes": boxes.to(self.device), "labels": labels.to(self.device)})
        return images, targets


def training_view(example: Example, flip: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels, and boxes and labels of the objects that are not difficult."""
    pixels, kept = example.pixels(), ~example.difficult
    boxes = example.boxes[kept]
    if flip:
        width = pixels.shape[2]
        left, top, right, bottom = boxes.unbind(1)
        pixels, boxes = pixels.flip(2), torch.stack([width - right, top, width - left, bottom], 1)
    return pixels, boxes, example.labels[kept]


# --- the trainer ----------------------------------------------------------------------------------


class Detector(Trainer):
    """Learns to find objects; evaluated by mean average precision."""

    def __init__(
        self,
        config: "Config",
        model: nn.Module,
        dataset: Voc,
        device: torch.device,
        *,
        team: Team = SINGLE_PROCESS,
    ) -> None:
        if team.shards:
            raise UserError(f"{config.task} does not support --shard: leave it out")
        if config.precision == "bf16":
            raise UserError("boxes need more digits than bf16 has: --precision tf32 or fp32")
        self.classes = dataset.classes
        training, self.evaluation = split(dataset, config.validation)
        batches = DetectionBatches(training, device, config=config, team=team)
        super().__init__(config, model, batches, device, compile=False, team=team)
        if self.on_gpu:
            torch.backends.cudnn.benchmark = False  # it pays only for shapes that repeat
        if dataset.left_out:
            self.notes = (
                f"{config.task}: {dataset.left_out} training images are left out, since they "
                "have no object that is not difficult",
            )
        self.detections: list[Detections] = []  # in the test images, after the last epoch

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The model samples its proposals at random, by seed, epoch and the first image only.

        With micro-batches of one image, any number of processes draws the same.
        """
        images, targets = self.batches.take(position, size)
        torch.manual_seed(seed_for("proposals", self.config.seed, self.evaluations) + int(position))
        losses: dict[str, Tensor] = self.model(images, targets)
        total = torch.stack([*losses.values()]).sum()
        return size * total, torch.zeros((), dtype=torch.int64, device=self.device)

    def metrics(self) -> dict[str, Any]:
        result = super().metrics()
        if not np.isfinite(result["train_loss"]):
            return result  # diverged: there is nothing to evaluate
        for name, examples in self.evaluation.items():
            detections = self._detect(examples)
            if name == "test":
                self.detections = detections
            scores = evaluate(detections, examples) if self.team.rank == 0 else None
            values: dict[str, float] = self.team.broadcast_object(scores)
            result |= {f"{name}_{key}": value for key, value in values.items()}
        return result

    @torch.no_grad()
    def _detect(self, examples: Sequence[Example]) -> list[Detections]:
        """One image at a time, so that no result depends on the others of a batch."""
        first, count = self.team.share(len(examples))
        self.model.eval()
        share = []
        for pixels in map_ahead(lambda e: e.pixels(), examples[first : first + count]):
            (found,) = self.model([pixels.to(self.device).float() / 255])
            share.append(Detections(*(found[k].cpu() for k in ("boxes", "labels", "scores"))))
        self.model.train()
        return [found for part in self.team.all_gather(share) for found in part]

    def pictures(self) -> dict[str, bytes]:
        """A few test images, always the same, with their detections."""
        if self.team.rank > 0:
            return {}
        examples = self.evaluation["test"]
        count = min(SHOWN, len(examples))
        chosen = [i * len(examples) // count for i in range(count)]
        pairs = [(examples[i], self.detections[i]) for i in chosen]
        return {"detections.png": detected.draw(pairs, self.classes)}


def split(dataset: Voc, validation: int) -> tuple[Sequence[Example], Mapping[str, Any]]:
    """Images to train on and to evaluate on; the same ones are always held out for validation."""
    training = dataset.train
    if not validation:
        return training, {"test": dataset.test}
    if validation >= len(training):
        raise UserError(f"validation takes all {len(training)} training images")
    order = np.random.default_rng(0).permutation(len(training))
    held, kept = sorted(order[:validation]), sorted(order[validation:])
    evaluation = {"test": dataset.test, "validation": [training[i] for i in held]}
    return [training[i] for i in kept], evaluation


def evaluate(detections: Sequence[Detections], examples: Sequence[Example]) -> dict[str, float]:
    voc_ap = detected.voc2007(detections, examples)
    return {**detected.coco(detections, examples), "voc_ap": voc_ap}

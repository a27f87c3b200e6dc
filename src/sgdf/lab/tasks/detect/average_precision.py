"""How good detections are: the mean average precision of COCO and of PASCAL VOC, in percent."""

from collections.abc import Sequence
from dataclasses import dataclass

import pycocotools  # type: ignore[import-untyped]  # noqa: F401, or missed after an epoch
import torch
from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision
from torchvision.ops import box_iou

from sgdf.lab.data.voc import Example


@dataclass(frozen=True)
class Detections:
    """What was found in an image."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor


def coco(found: Sequence[Detections], examples: Sequence[Example]) -> dict[str, float]:
    """COCO's rule: `ap50` at IoU 0.5, and `ap` as a mean over IoU 0.5 to 0.95.

    Difficult objects are to it what crowds are: to find them is neither right nor wrong.
    """
    metric = MeanAveragePrecision(sync_on_compute=False)  # one process has all there is
    targets = [
        {"boxes": e.boxes, "labels": e.labels, "iscrowd": e.difficult.long()} for e in examples
    ]
    metric.update([vars(detections) for detections in found], targets)
    values = metric.compute()
    means = {"ap50": float(values["map_50"]), "ap": float(values["map"])}
    return {name: 100 * max(mean, 0.0) for name, mean in means.items()}  # -1: there are no objects


def voc2007(found: Sequence[Detections], examples: Sequence[Example]) -> float:
    """VOC's rule of 2007: precision at eleven recalls, over the classes that there are."""
    objects = torch.cat([e.labels[~e.difficult] for e in examples])
    values = [average_precision(found, examples, label) for label in objects.unique().tolist()]
    return 100 * sum(values) / len(values) if values else 0.0


def average_precision(
    found: Sequence[Detections], examples: Sequence[Example], label: int
) -> float:
    """Of one class: the mean over recalls 0, 0.1, ... 1 of the best precision from there on."""
    pairs = [match(d, e, label) for d, e in zip(found, examples, strict=True)]
    scores = torch.cat([scores for scores, _ in pairs])
    verdicts = torch.cat([verdicts for _, verdicts in pairs])
    verdicts = verdicts[scores.argsort(descending=True, stable=True)]
    right = (verdicts == RIGHT).cumsum(0)
    wrong = (verdicts == WRONG).cumsum(0)
    precision = right / (right + wrong).clamp(min=1)
    count = sum(int(((e.labels == label) & ~e.difficult).sum()) for e in examples)
    # In whole numbers, since 3 of 10 is not less than a recall of 0.3.
    reached = [precision[10 * right >= tenths * count] for tenths in range(11)]
    return sum(float(p.max()) if len(p) else 0.0 for p in reached) / 11


RIGHT, WRONG, IGNORED = 1, 0, -1


def match(found: Detections, example: Example, label: int) -> tuple[Tensor, Tensor]:
    """The scores of an image's detections of a class, the best first, and what to say of each.

    Every detection goes to the object that it overlaps most. An object is found once: who comes
    later is wrong. A difficult one is not counted at all.
    """
    mine, theirs = found.labels == label, example.labels == label
    scores, order = found.scores[mine].sort(descending=True, stable=True)
    verdicts = torch.full((len(scores),), WRONG)
    if not len(scores) or not theirs.any():
        return scores, verdicts
    overlaps, nearest = box_iou(found.boxes[mine][order], example.boxes[theirs]).max(1)
    difficult = example.difficult[theirs]
    taken: set[int] = set()
    for i, (overlap, nth) in enumerate(zip(overlaps.tolist(), nearest.tolist(), strict=True)):
        if overlap < 0.5:
            continue
        if difficult[nth]:
            verdicts[i] = IGNORED
        elif nth not in taken:
            taken.add(nth)
            verdicts[i] = RIGHT
    return scores, verdicts

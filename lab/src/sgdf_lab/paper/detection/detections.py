"""Detections: mean average precision by the rules of COCO and of PASCAL VOC, in percent; and the
boxes drawn into their images, several images in one picture.
"""

import colorsys
import io
from collections.abc import Sequence
from dataclasses import dataclass

import pycocotools  # type: ignore[import-untyped]  # noqa: F401  # if it is missing, fail before an epoch
import torch
from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision
from torchvision.ops import box_iou
from torchvision.transforms.functional import center_crop, resize, to_pil_image
from torchvision.utils import draw_bounding_boxes, make_grid

from sgdf_lab.paper.detection.voc import CLASSES, Example


@dataclass(frozen=True)
class Detections:
    """The objects found in an image."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor


def coco(found: Sequence[Detections], examples: Sequence[Example]) -> dict[str, float]:
    """COCO's rule: `ap50` at IoU 0.5, and `ap`, the mean over IoU 0.5 to 0.95.

    Difficult objects are passed as crowds: finding one counts neither for nor against.
    """
    metric = MeanAveragePrecision(sync_on_compute=False)  # one process has all detections
    targets = [
        {"boxes": e.boxes, "labels": e.labels, "iscrowd": e.difficult.long()} for e in examples
    ]
    metric.update([vars(detections) for detections in found], targets)
    values = metric.compute()
    means = {"ap50": float(values["map_50"]), "ap": float(values["map"])}
    return {name: 100 * max(mean, 0.0) for name, mean in means.items()}  # -1: no objects


def voc2007(found: Sequence[Detections], examples: Sequence[Example]) -> float:
    """The rule of VOC 2007: precision at eleven recalls, over the classes that occur."""
    objects = torch.cat([e.labels[~e.difficult] for e in examples])
    values = [average_precision(found, examples, label) for label in objects.unique().tolist()]
    return 100 * sum(values) / len(values) if values else 0.0


def average_precision(
    found: Sequence[Detections], examples: Sequence[Example], label: int
) -> float:
    """One class: the mean over recalls 0, 0.1, ... 1 of the best precision at or above each."""
    pairs = [match(d, e, label) for d, e in zip(found, examples, strict=True)]
    scores = torch.cat([scores for scores, _ in pairs])
    verdicts = torch.cat([verdicts for _, verdicts in pairs])
    verdicts = verdicts[scores.argsort(descending=True, stable=True)]
    right = (verdicts == RIGHT).cumsum(0)
    wrong = (verdicts == WRONG).cumsum(0)
    precision = right / (right + wrong).clamp(min=1)
    count = sum(int(((e.labels == label) & ~e.difficult).sum()) for e in examples)
    # In integers: 3 of 10 objects reach a recall of 0.3, which in floats they might not.
    reached = [precision[10 * right >= tenths * count] for tenths in range(11)]
    return sum(float(p.max()) if len(p) else 0.0 for p in reached) / 11


RIGHT, WRONG, IGNORED = 1, 0, -1


def match(found: Detections, example: Example, label: int) -> tuple[Tensor, Tensor]:
    """Scores of an image's detections of a class, highest first, and a verdict on each.

    A detection belongs to the object that it overlaps most. The first detection of an object is
    right and later ones are wrong; those of a difficult object are ignored.
    """
    detected, real = found.labels == label, example.labels == label
    scores, order = found.scores[detected].sort(descending=True, stable=True)
    verdicts = torch.full((len(scores),), WRONG)
    if not len(scores) or not real.any():
        return scores, verdicts
    overlaps, nearest = box_iou(found.boxes[detected][order], example.boxes[real]).max(1)
    difficult = example.difficult[real]
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


# --- pictures -------------------------------------------------------------------------------------

CELL = 320, 400  # height and width of the space for an image, in pixels
GAP = 8
COLUMNS = 3
LEAST_SCORE = 0.5  # of detections that are shown


def draw(pairs: Sequence[tuple[Example, Detections]], classes: Sequence[str] = CLASSES) -> bytes:
    """A grid of the images, with boxes, names and scores, as PNG."""
    cells = [with_boxes(example, found, classes) for example, found in pairs]
    file = io.BytesIO()
    to_pil_image(make_grid(cells, min(COLUMNS, len(cells)), GAP)).save(file, "PNG")
    return file.getvalue()


def with_boxes(example: Example, found: Detections, classes: Sequence[str]) -> Tensor:
    """The image as large as a cell allows; higher scores over lower ones."""
    pixels = example.pixels()
    height, width = pixels.shape[1:]
    scale = min(CELL[0] / height, CELL[1] / width)
    image = resize(pixels, [round(scale * height), round(scale * width)])
    if shown := [i for i in found.scores.argsort().tolist() if found.scores[i] >= LEAST_SCORE]:
        labels = found.labels[shown].tolist()
        image = draw_bounding_boxes(
            image,
            scale * found.boxes[shown],
            [f"{classes[n - 1]} {found.scores[i]:.2f}" for n, i in zip(labels, shown, strict=True)],
            [colour(label) for label in labels],
            width=3,
            label_colors="white",
            fill_labels=True,
        )
    return center_crop(image, list(CELL))


def colour(label: int) -> tuple[int, int, int]:
    """Dark enough for white words, and far from those of neighbouring classes."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.382 % 1, 0.9, 0.65)
    return round(255 * red), round(255 * green), round(255 * blue)

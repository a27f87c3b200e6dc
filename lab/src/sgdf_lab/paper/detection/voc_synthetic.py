"""A stand-in for PASCAL VOC: rectangles in the colour of their class."""

import colorsys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.paper.detection.voc import CLASSES, Example, Voc

TRAIN, TEST = 64, 32
SIDE = 64


@dataclass(frozen=True)
class DrawnExample(Example):
    """An image that is drawn when its pixels are needed."""

    def pixels(self) -> Tensor:
        width, height = self.size
        values = np.random.default_rng(int(self.path.name)).normal(127, 20, (3, height, width))
        image = torch.from_numpy(values.clip(0, 255).astype(np.uint8))
        for box, label in zip(self.boxes.int().tolist(), self.labels.tolist(), strict=True):
            left, top, right, bottom = box
            image[:, top:bottom, left:right] = torch.tensor(colour(label))[:, None, None]
        return image


def colour(label: int) -> list[int]:
    return [round(255 * part) for part in colorsys.hsv_to_rgb(label / len(CLASSES), 0.9, 0.9)]


def make_voc() -> Voc:
    examples = tuple(draw(number) for number in range(TRAIN + TEST))
    return Voc(examples[:TRAIN], examples[TRAIN:])


def draw(number: int) -> DrawnExample:
    """One or two rectangles, one in each half of an image."""
    random = np.random.default_rng(number)
    size = (int(random.integers(SIDE, 3 * SIDE // 2)), SIDE)
    count = int(random.integers(1, 3))
    boxes, labels = [], []
    for half in range(count):
        width = size[0] // count
        wide, high = random.integers(width // 2, width - 2), random.integers(SIDE // 3, SIDE - 2)
        left = half * width + random.integers(0, width - wide)
        top = random.integers(0, SIDE - high)
        boxes.append([left, top, left + wide, top + high])
        labels.append(int(random.integers(1, len(CLASSES) + 1)))
    return DrawnExample(
        Path(str(number)),
        size,
        torch.tensor(np.array(boxes), dtype=torch.float32),
        torch.tensor(labels),
        torch.zeros(count, dtype=torch.bool),
    )

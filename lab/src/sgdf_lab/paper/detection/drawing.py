"""Detections drawn into their images, several images in one picture."""

import colorsys
import io
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from sgdf_lab.paper.detection.average_precision import Detections
from sgdf_lab.paper.detection.voc import CLASSES, Example

CELL = 400, 320  # space for an image, in pixels
GAP = 8
COLUMNS = 3
LEAST_SCORE = 0.5  # of detections that are shown


def draw(pairs: Sequence[tuple[Example, Detections]], classes: Sequence[str] = CLASSES) -> bytes:
    """A grid of the images, with boxes, names and scores, as PNG."""
    columns = min(COLUMNS, len(pairs))
    rows = math.ceil(len(pairs) / columns)
    width, height = CELL[0] + GAP, CELL[1] + GAP
    grid = Image.new("RGB", (columns * width + GAP, rows * height + GAP), "white")
    for i, (example, found) in enumerate(pairs):
        image = with_boxes(example, found, classes)
        left = GAP + i % columns * width + (CELL[0] - image.width) // 2
        top = GAP + i // columns * height + (CELL[1] - image.height) // 2
        grid.paste(image, (left, top))
    file = io.BytesIO()
    grid.save(file, "PNG")
    return file.getvalue()


def with_boxes(example: Example, found: Detections, classes: Sequence[str]) -> Image.Image:
    """The image as large as a cell allows; names over frames, higher scores over lower ones."""
    image = Image.fromarray(example.pixels().permute(1, 2, 0).contiguous().numpy())
    scale = min(CELL[0] / image.width, CELL[1] / image.height)
    image = image.resize((round(scale * image.width), round(scale * image.height)))
    pen = ImageDraw.Draw(image)
    shown = [i for i in found.scores.argsort().tolist() if found.scores[i] >= LEAST_SCORE]
    boxes = (scale * found.boxes).tolist()
    for i in shown:
        draw_frame(pen, boxes[i], colour(int(found.labels[i])))
    for i in shown:
        label = int(found.labels[i])
        words = f"{classes[label - 1]} {found.scores[i]:.2f}"
        draw_name(pen, boxes[i], words, colour(label), image)
    return image


def draw_frame(pen: ImageDraw.ImageDraw, box: list[float], ink: str) -> None:
    """A white outline keeps it visible on its own colour."""
    left, top, right, bottom = box
    pen.rectangle(box, outline="white", width=5)
    if right - left > 2 and bottom - top > 2:
        pen.rectangle((left + 1, top + 1, right - 1, bottom - 1), outline=ink, width=3)


def draw_name(
    pen: ImageDraw.ImageDraw, box: list[float], words: str, ground: str, image: Image.Image
) -> None:
    """Words above a frame, or inside it if there is no space."""
    font = ImageFont.load_default(14)
    wide, high = pen.textbbox((0, 0), words, font=font)[2:]
    left = max(0, min(box[0], image.width - wide - 6))
    top = box[1] - high - 4 if box[1] >= high + 4 else box[1]
    pen.rectangle((left, top, left + wide + 6, top + high + 4), fill=ground)
    pen.text((left + 3, top + 1), words, fill="white", font=font)


def colour(label: int) -> str:
    """Dark enough for white words, and far from those of neighbouring classes."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.382 % 1, 0.9, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"

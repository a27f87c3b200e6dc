"""Detections drawn into their images, a few images in one picture."""

import colorsys
import io
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from sgdf.lab.average_precision import Detections
from sgdf.lab.data.voc import CLASSES, Example

CELL = 400, 320  # the room for an image, in pixels
GAP = 8
COLUMNS = 3
SURE = 0.5  # the score from which on a detection is shown


def draw(pairs: Sequence[tuple[Example, Detections]]) -> bytes:
    """A grid of the images, with boxes, names and scores, as PNG."""
    columns = min(COLUMNS, len(pairs))
    rows = math.ceil(len(pairs) / columns)
    width, height = CELL[0] + GAP, CELL[1] + GAP
    grid = Image.new("RGB", (columns * width + GAP, rows * height + GAP), "white")
    for i, (example, found) in enumerate(pairs):
        image = with_boxes(example, found)
        left = GAP + i % columns * width + (CELL[0] - image.width) // 2
        top = GAP + i // columns * height + (CELL[1] - image.height) // 2
        grid.paste(image, (left, top))
    file = io.BytesIO()
    grid.save(file, "PNG")
    return file.getvalue()


def with_boxes(example: Example, found: Detections) -> Image.Image:
    """The image as large as a cell allows; the surest detection is drawn last, on top."""
    image = Image.fromarray(example.pixels().permute(1, 2, 0).contiguous().numpy())
    scale = min(CELL[0] / image.width, CELL[1] / image.height)
    image = image.resize((round(scale * image.width), round(scale * image.height)))
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(14)
    for i in found.scores.argsort().tolist():
        if found.scores[i] >= SURE:
            label = int(found.labels[i])
            words = f"{CLASSES[label - 1]} {found.scores[i]:.2f}"
            mark(pen, (scale * found.boxes[i]).tolist(), words, colour(label), font, image.size)
    return image


def mark(
    pen: ImageDraw.ImageDraw,
    box: list[float],
    words: str,
    ink: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    size: tuple[int, int],
) -> None:
    """A frame, and its words on a ground of its colour: above it, or inside where no room is."""
    pen.rectangle(box, outline=ink, width=3)
    wide, high = pen.textbbox((0, 0), words, font=font)[2:]
    left = max(0, min(box[0], size[0] - wide - 6))
    top = box[1] - high - 4 if box[1] >= high + 4 else box[1]
    pen.rectangle((left, top, left + wide + 6, top + high + 4), fill=ink)
    pen.text((left + 3, top + 1), words, fill="white", font=font)


def colour(label: int) -> str:
    """Dark enough for white words; neighbours in the list of classes are far apart."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.382 % 1, 0.9, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"

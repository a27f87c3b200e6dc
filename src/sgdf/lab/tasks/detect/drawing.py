"""Detections drawn into their images, a few images in one picture."""

import colorsys
import io
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from sgdf.lab.data.voc import CLASSES, Example
from sgdf.lab.tasks.detect.average_precision import Detections

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
    """The image as large as a cell allows; names above frames, and the surest above others."""
    image = Image.fromarray(example.pixels().permute(1, 2, 0).contiguous().numpy())
    scale = min(CELL[0] / image.width, CELL[1] / image.height)
    image = image.resize((round(scale * image.width), round(scale * image.height)))
    pen = ImageDraw.Draw(image)
    shown = [i for i in found.scores.argsort().tolist() if found.scores[i] >= SURE]
    boxes = (scale * found.boxes).tolist()
    for i in shown:
        frame(pen, boxes[i], colour(int(found.labels[i])))
    for i in shown:
        label = int(found.labels[i])
        name(pen, boxes[i], f"{CLASSES[label - 1]} {found.scores[i]:.2f}", colour(label), image)
    return image


def frame(pen: ImageDraw.ImageDraw, box: list[float], ink: str) -> None:
    """With white around it, so that it shows on its own colour."""
    left, top, right, bottom = box
    pen.rectangle(box, outline="white", width=5)
    if right - left > 2 and bottom - top > 2:
        pen.rectangle((left + 1, top + 1, right - 1, bottom - 1), outline=ink, width=3)


def name(
    pen: ImageDraw.ImageDraw, box: list[float], words: str, ground: str, image: Image.Image
) -> None:
    """Words above a frame, or inside where no room is."""
    font = ImageFont.load_default(14)
    wide, high = pen.textbbox((0, 0), words, font=font)[2:]
    left = max(0, min(box[0], image.width - wide - 6))
    top = box[1] - high - 4 if box[1] >= high + 4 else box[1]
    pen.rectangle((left, top, left + wide + 6, top + high + 4), fill=ground)
    pen.text((left + 3, top + 1), words, fill="white", font=font)


def colour(label: int) -> str:
    """Dark enough for white words; neighbours in the list of classes are far apart."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.382 % 1, 0.9, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"

"""A small PASCAL VOC in its official form: coloured rectangles as JPEG, annotations as XML."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

YEARS = {"VOC2007": ("trainval", "test"), "VOC2012": ("trainval",)}
COLOURS = {"cat": "red", "dog": "lime", "person": "blue"}
Object = tuple[str, tuple[float, float, float, float], bool]  # name, pixels from 1 on, difficult


def make(data: Path, train: int = 6, test: int = 4, side: int = 64) -> Path:
    """The VOCdevkit in the data folder: two thirds of the training images are 2007's."""
    devkit = data / "voc" / "VOCdevkit"
    random = np.random.default_rng(0)
    for year, part, count, first in (
        ("VOC2007", "trainval", train - train // 3, 1),
        ("VOC2012", "trainval", train // 3, 2008_000001),
        ("VOC2007", "test", test, 501),
    ):
        for number in range(first, first + count):
            size = (side + int(random.integers(0, side // 2)), side)
            add(devkit / year, part, name_of(year, number), some_objects(random, size), size)
    return devkit


def name_of(year: str, number: int) -> str:
    return f"{number:06d}" if year == "VOC2007" else f"{number // 1000000}_{number % 1000000:06d}"


def some_objects(random: np.random.Generator, size: tuple[int, int]) -> list[Object]:
    objects: list[Object] = []
    width, height = size[0] // 2, size[1]
    for half in range(2):
        wide, high = random.integers(width // 2, width), random.integers(height // 2, height)
        left, top = half * width + random.integers(0, width - wide), height - high
        box = (left + 1, top + 1, left + wide, top + high)
        objects.append((random.choice([*COLOURS]), box, half == 1 and random.random() < 0.2))
    return objects


def add(
    root: Path, part: str, name: str, objects: list[Object], size: tuple[int, int] = (64, 48)
) -> None:
    """An image with its annotation, at the end of a list."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, "grey")
    pen = ImageDraw.Draw(image)
    for kind, (left, top, right, bottom), _ in objects:
        pen.rectangle((left - 1, top - 1, right - 1, bottom - 1), fill=COLOURS[kind])
    image.save(root / "JPEGImages" / f"{name}.jpg", quality=95, subsampling=0)
    (root / "Annotations" / f"{name}.xml").write_text(annotation(root.name, name, objects, size))
    with open(root / "ImageSets" / "Main" / f"{part}.txt", "a") as file:
        file.write(f"{name}\n")


def annotation(year: str, name: str, objects: list[Object], size: tuple[int, int]) -> str:
    """As VOC writes them; a person also has parts, with boxes that are not objects."""
    part = f"<part><name>head</name>{bndbox((2, 2, 5, 5))}</part>"
    return (
        f"""<annotation>
\t<folder>{year}</folder>
\t<filename>{name}.jpg</filename>
\t<source><database>The {year} Database</database></source>
\t<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>
\t<segmented>0</segmented>
"""
        + "".join(
            f"""\t<object>
\t\t<name>{kind}</name>
\t\t<pose>Unspecified</pose>
\t\t<truncated>0</truncated>
\t\t<difficult>{int(difficult)}</difficult>
\t\t{bndbox(box)}
\t\t{part if kind == "person" else ""}
\t</object>
"""
            for kind, box, difficult in objects
        )
        + "</annotation>\n"
    )


def bndbox(box: tuple[float, float, float, float]) -> str:
    names = ("xmin", "ymin", "xmax", "ymax")
    edges = "".join(f"<{n}>{v}</{n}>" for n, v in zip(names, box, strict=True))
    return f"<bndbox>{edges}</bndbox>"

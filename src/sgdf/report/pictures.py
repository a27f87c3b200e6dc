"""What runs have drawn, small enough for a page: a generator's samples, objects that were found."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from sgdf.report.records import Cell, Record

SIDE = 640  # pixels at most: a page has one for each cell


@dataclass(frozen=True)
class Picture:
    """The last one of a run; `data` is an address that holds the image itself."""

    caption: str
    data: str


def pictures(cells: Sequence[Cell]) -> list[Picture]:
    """One of each cell that has any: of its first seed, drawn last."""
    found = ((cell, picture_of(record)) for cell in cells for record in cell.records[:1])
    return [Picture(f"{cell.label}: {name}", data) for cell, (name, data) in found if data]


def picture_of(record: Record) -> tuple[str, str]:
    """Its name and data. Decoded and encoded anew, so that nothing but pixels comes through."""
    for path in sorted((record.folder / "pictures").glob("*.png"))[-1:]:
        try:
            with Image.open(path, formats=("PNG",)) as image:
                small = image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            file = io.BytesIO()
            small.save(file, "jpeg", quality=85)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            break  # a run without a picture is still a run
        encoded = base64.b64encode(file.getvalue()).decode()
        return f"seed {record.config.seed}, {path.name}", f"data:image/jpeg;base64,{encoded}"
    return "", ""

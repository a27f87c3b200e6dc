"""Pictures that runs have drawn, small enough for a page: generated samples, detected objects."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from sgdf_lab.reports.cells import RunCell
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.support.files import open_regular

SIDE = 640  # pixels at most, as a page has one picture per cell


@dataclass(frozen=True)
class RunPicture:
    """The last picture of a run; `data_url` holds the image itself."""

    caption: str
    data_url: str


def last_pictures(cells: Sequence[RunCell]) -> list[RunPicture]:
    """The last picture of each cell's first seed, for the cells that have one."""
    pictures = ((cell, last_picture(run)) for cell in cells for run in cell.records[:1])
    return [RunPicture(f"{cell.label}: {name}", data) for cell, (name, data) in pictures if data]


def last_picture(record: RunRecord) -> tuple[str, str]:
    """Name and data; decoded and encoded again, so that nothing but pixels gets through."""
    for path in sorted((record.folder / "pictures").glob("*.png"))[-1:]:
        try:
            with open_regular(path) as png, Image.open(png, formats=("PNG",)) as image:
                small = image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            file = io.BytesIO()
            small.save(file, "jpeg", quality=85)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            break  # a damaged picture loses no result
        encoded = base64.b64encode(file.getvalue()).decode()
        return f"seed {record.config.seed}, {path.name}", f"data:image/jpeg;base64,{encoded}"
    return "", ""

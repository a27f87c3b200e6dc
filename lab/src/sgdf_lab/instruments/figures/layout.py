"""What the figures of instruments share: panels, colours, line styles and labels."""

import math
import textwrap
from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure

from sgdf_lab import optimizers
from sgdf_lab.support import palette
from sgdf_lab.support.figures import plain

DASHES = ("-", "--", ":", "-.")


def colour(label: str) -> str:
    """The colour of the optimizer that the label begins with."""
    return optimizers.style(label.partition(",")[0].strip().lower()).colour


def dashes(labels: Iterable[str]) -> dict[str, str]:
    """A line style for each label, different for labels of the same colour."""
    styles: dict[str, str] = {}
    for label in labels:
        used = [dash for other, dash in styles.items() if colour(other) == colour(label)]
        styles[label] = DASHES[len(used) % len(DASHES)]
    return styles


def narrow(label: str, width: int = 22) -> str:
    """The label in lines that fit above a small panel, broken after commas if possible."""
    lines: list[str] = []
    for part in label.split(", "):
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return plain(",\n".join(textwrap.fill(line, width) for line in lines))


def columns_for(count: int) -> int:
    return count if count <= 3 else math.ceil(count / math.ceil(count / 4))


def panels(
    count: int, width: float, height: float, layout: Any = "constrained", **kind: Any
) -> tuple[Figure, list[Any]]:
    """A figure with `count` panels, row by row."""
    columns = columns_for(count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(columns * width, 5.5), rows * height + 0.7), layout=layout)
    axes = [figure.add_subplot(rows, columns, i + 1, **kind) for i in range(count)]
    return figure, axes


def state_conditions(figure: Figure, images: int, mode: str) -> None:
    """Say below the figure how its losses were evaluated."""
    conditions = f"mean loss over {images} images; {mode}"
    figure.supxlabel(conditions, fontsize=8, color=palette.GREY)


def legend_below(figure: Figure, axes: Any, columns: int, **text: Any) -> None:
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, ncols=columns, loc="outside lower center", frameon=False, **text)

"""What all matplotlib figures share: a style, labels as plain text, PNG and SVG files."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "svg.hashsalt": "sgdf",  # equal figures are equal files
}


def write(figure: Figure, stem: Path) -> list[Path]:
    """Write the figure as PNG and as SVG."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
    with rc_context(STYLE):
        figure.savefig(files[0], dpi=200)
        figure.savefig(files[1], metadata={"Date": None})
    return files


def plain(label: str) -> str:
    """Escape dollar signs: matplotlib would read a formula between two of them."""
    return label.replace("$", r"\$")

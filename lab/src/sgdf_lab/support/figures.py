"""What all matplotlib figures share: a style, labels as plain text, PNG and SVG files."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from sgdf_lab.support.palette import INK, ON_DARK, PAGE_ON_DARK

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "svg.hashsalt": "sgdf",  # equal figures are equal files
}


def write(figure: Figure, stem: Path) -> list[Path]:
    """Write the figure as PNG, and as SVG that follows the reader's colour scheme."""
    picture = stem.with_name(f"{stem.name}.png")
    picture.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure.savefig(picture, dpi=200)
    return [picture, write_svg(figure, stem)]


def write_svg(figure: Figure, stem: Path) -> Path:
    """Write the figure as SVG that follows the reader's colour scheme."""
    file = stem.with_name(f"{stem.name}.svg")
    file.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure.savefig(file, metadata={"Date": None})
    file.write_text(with_dark_style(file.read_text(encoding="utf-8")), encoding="utf-8")
    return file


def with_dark_style(svg: str) -> str:
    """Add rules for the colours, which matplotlib writes into the style of every element."""
    colours = {light.lower(): dark for light, dark in (ON_DARK | PAGE_ON_DARK).items()}
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}: {dark} !important}}'
        for light, dark in colours.items()
        for part in ("fill", "stroke")
    )
    # What is black has no fill of its own.
    dark = f"@media (prefers-color-scheme: dark){{svg{{fill: {PAGE_ON_DARK[INK]}}}{rules}}}"
    return svg.replace("</style>", f"{dark}</style>", 1)


def plain(label: str) -> str:
    """Escape dollar signs: matplotlib would read a formula between two of them."""
    return label.replace("$", r"\$")

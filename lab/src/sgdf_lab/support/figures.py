"""What all matplotlib figures share: a style, labels as plain text, PNG and SVG files, hover."""

import html
import io
import re
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from sgdf_lab.support.palette import INK, ON_DARK, PAGE_ON_DARK

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "svg.hashsalt": "sgdf",  # equal figures are equal files
}
LINE_STYLES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 2, 1, 2)),
}
HOVER = "hover-"  # begins the id of an element with words of its own


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
    svg = as_svg(figure).replace("</style>", f"{dark_rules()}</style>", 1)
    file.write_text(svg, encoding="utf-8")
    return file


def inline_svg(figure: Figure, fonttype: str = "none") -> str:
    """The figure as an element of a page, whose style has the `dark_rules`.

    It takes the page's font, or with "path" it has the shapes of its letters, as formulas need.
    What matplotlib writes before the element, and its metadata and style, belong to a file.
    """
    svg = as_svg(figure, {"svg.fonttype": fonttype})
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[a-z]+[0-9.]*_[0-9]+"', "", svg)  # other figures have the same
    return re.sub(r' (width|height)="[^"]*"', "", svg, count=2)


def as_svg(figure: Figure, parameters: Any = None) -> str:
    """With the words of `hover` where a browser looks for them."""
    file = io.StringIO()
    with rc_context({**STYLE, **(parameters or {})}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return re.sub(
        rf'<g id="{HOVER}([0-9a-f]+)">',
        lambda found: f"<g><title>{html.escape(bytes.fromhex(found[1]).decode())}</title>",
        file.getvalue(),
    )


def hover(artist: Artist, words: str) -> None:
    """Show these words where somebody points at the artist in an SVG."""
    artist.set_gid(HOVER + words.encode(errors="replace").hex())


def dark_rules() -> str:
    """Rules for the colours, which matplotlib writes into the style of every element."""
    colours = {light.lower(): dark for light, dark in (ON_DARK | PAGE_ON_DARK).items()}
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}: {dark} !important}}'
        for light, dark in colours.items()
        for part in ("fill", "stroke")
    )
    # What is black has no fill of its own.
    scheme = f"svg{{fill: {PAGE_ON_DARK[INK]}}}{rules}"
    return f"@media screen and (prefers-color-scheme: dark){{{scheme}}}"


def plain(label: str) -> str:
    """Escape dollar signs: matplotlib would read a formula between two of them."""
    return label.replace("$", r"\$")

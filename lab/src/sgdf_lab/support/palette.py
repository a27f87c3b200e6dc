"""The colours and dashes of all figures.

The colours are Okabe and Ito's, which colour-blind readers can tell apart, and three darker ones.
Those of an optimizer are in its row of `sgdf_lab.registry.optimizers`.
"""

import hashlib
from typing import NamedTuple

BLACK, GREY = "#000000", "#7a7a7a"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, BROWN = "#0072B2", "#D55E00", "#CC79A7", "#7B4B1E"
OLIVE, WINE, INDIGO = "#8A8A1F", "#882255", "#332288"

PAPER, INK, AXIS, GRID = "#ffffff", "#222222", "#888888", "#e6e6e6"  # of the page itself

#: The colours on a dark page: lighter, so that each stands out from it.
ON_DARK = {
    BLACK: "#F2F2F2",
    GREY: "#A3A3A3",
    ORANGE: "#FFC24A",
    SKY: "#9ADBFF",
    GREEN: "#2CC79A",
    BLUE: "#4DA6E8",
    VERMILION: "#FF7F32",
    PURPLE: "#F2B3D6",
    BROWN: "#C08A58",
    OLIVE: "#C9C95B",
    WINE: "#E8588C",
    INDIGO: "#9D8CF5",
}
PAGE_ON_DARK = {PAPER: "#16181d", INK: "#e4e4e4", AXIS: "#8d939c", GRID: "#33373e"}

SPARE = (ORANGE, SKY, GREEN, BLUE, PURPLE, BROWN, BLACK, GREY)  # for unknown optimizers
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


class Look(NamedTuple):
    """How the line of an optimizer is drawn."""

    colour: str
    dash: str


def spare_look(optimizer: str) -> Look:
    """For an unknown optimizer; always the same for the same name."""
    digest = hashlib.sha256(optimizer.encode(errors="replace")).digest()
    return Look(SPARE[digest[0] % len(SPARE)], DASHES[digest[1] % len(DASHES)])

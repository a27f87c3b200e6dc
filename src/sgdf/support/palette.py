"""The colours and dashes of all figures.

The colours are Okabe and Ito's, which colour-blind readers can tell apart. Those of an
optimizer are in its row of `sgdf.lab.optimizers.registry`.
"""

import hashlib
from typing import NamedTuple

BLACK, GREY = "#000000", "#7a7a7a"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, BROWN = "#0072B2", "#D55E00", "#CC79A7", "#7B4B1E"

SPARE = (ORANGE, SKY, GREEN, BLUE, PURPLE, BROWN, BLACK, GREY)  # for unknown optimizers
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")  # plotly's names


class Look(NamedTuple):
    """How the line of an optimizer is drawn."""

    colour: str
    dash: str


def spare_look(optimizer: str) -> Look:
    """For an unknown optimizer; always the same for the same name."""
    digest = hashlib.sha256(optimizer.encode(errors="replace")).digest()
    return Look(SPARE[digest[0] % len(SPARE)], DASHES[digest[1] % len(DASHES)])

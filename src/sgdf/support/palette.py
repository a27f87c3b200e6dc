"""One colour and dash for each optimizer in every figure.

The colours are Okabe and Ito's, which colour-blind readers can tell apart.
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


# Related optimizers share a colour or a dash, never both.
LOOKS = {
    "sgdf": Look(VERMILION, "solid"),
    "sgd": Look(BLUE, "dash"),
    "sgd-cm": Look(SKY, "dashdot"),
    "sgd-ema": Look(PURPLE, "dot"),
    "adam": Look(GREEN, "dot"),
    "adamw": Look(GREEN, "longdash"),
    "filter-adam": Look(VERMILION, "dash"),
    "filter-adamw": Look(VERMILION, "longdash"),
    "radam": Look(GREEN, "dashdot"),
    "adabelief": Look(PURPLE, "longdash"),
    "adabound": Look(SKY, "solid"),
    "msvag": Look(ORANGE, "dashdot"),
    "lion": Look(BROWN, "dash"),
    "sophia-g": Look(BLACK, "dot"),
    "yogi": Look(PURPLE, "dashdot"),
    "padam": Look(ORANGE, "dash"),
    "eadam": Look(SKY, "dash"),
    "rmsprop": Look(GREY, "solid"),
    "fromage": Look(GREY, "dash"),
}


def look(optimizer: str) -> Look:
    """The optimizer's colour and dash."""
    return LOOKS.get(optimizer) or spare_look(optimizer)


def spare_look(optimizer: str) -> Look:
    """For an unknown optimizer; always the same for the same name."""
    digest = hashlib.sha256(optimizer.encode(errors="replace")).digest()
    return Look(SPARE[digest[0] % len(SPARE)], DASHES[digest[1] % len(DASHES)])


def colour(optimizer: str) -> str:
    return look(optimizer).colour

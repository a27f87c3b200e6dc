"""One colour for each optimizer, in every figure: Okabe and Ito's, which the colour-blind can tell."""

import hashlib

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, BROWN = "#666666", "#7A4B1E"

COLOURS = {
    "sgdf": VERMILION,
    "sgd": BLUE,
    "sgd-cm": SKY,
    "sgd-ema": PURPLE,
    "adam": GREEN,
    "adamw": GREEN,
    "filter-adam": VERMILION,
    "filter-adamw": VERMILION,
    "radam": GREEN,
    "adabelief": PURPLE,
    "adabound": SKY,
    "msvag": ORANGE,
    "lion": BROWN,
    "sophia-g": BLACK,
    "yogi": PURPLE,
    "padam": ORANGE,
    "eadam": SKY,
    "rmsprop": GREY,
    "fromage": GREY,
}
SPARE = (ORANGE, SKY, GREEN, BLUE, PURPLE, BROWN, BLACK, GREY)


def colour(optimizer: str) -> str:
    """The optimizer's own, or for an unknown one always the same of the spare ones."""
    digest = hashlib.sha256(optimizer.encode()).digest()
    return COLOURS.get(optimizer, SPARE[digest[0] % len(SPARE)])

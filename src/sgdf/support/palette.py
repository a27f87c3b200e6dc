"""One colour for each optimizer in every figure: Okabe and Ito's, told apart by all eyes."""

import hashlib

BLACK, GREY = "#000000", "#7a7a7a"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, BROWN = "#0072B2", "#D55E00", "#CC79A7", "#7B4B1E"

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
    digest = hashlib.sha256(optimizer.encode(errors="replace")).digest()
    return COLOURS.get(optimizer, SPARE[digest[0] % len(SPARE)])

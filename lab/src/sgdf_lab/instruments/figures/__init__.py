"""Figures of what the instruments measured, drawn with matplotlib.

Each takes results by label and shows them in one figure, on the same axes. A label begins with the
name of an optimizer, as in "sgdf" or "sgdf, seed 1", which gives it the optimizer's colour.
"""

from sgdf_lab.instruments.figures.errors import errors_by_epoch, errors_by_step
from sgdf_lab.instruments.figures.gradients import distributions, gains, norms
from sgdf_lab.instruments.figures.landscapes import contours, path_contours, profiles, relief
from sgdf_lab.instruments.figures.spectra import density, eigenvalues
from sgdf_lab.support.figures import write

__all__ = [
    "contours",
    "density",
    "distributions",
    "eigenvalues",
    "errors_by_epoch",
    "errors_by_step",
    "gains",
    "norms",
    "path_contours",
    "profiles",
    "relief",
    "write",
]

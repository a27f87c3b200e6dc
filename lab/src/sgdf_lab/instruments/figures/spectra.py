"""Figures of Hessian spectra."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from sgdf_lab.instruments.figures.layout import (
    colour,
    columns_for,
    dashes,
    narrow,
    panels,
    state_conditions,
)
from sgdf_lab.instruments.hessian import Spectrum
from sgdf_lab.instruments.hessian.spectra import KERNEL_WIDTH
from sgdf_lab.support import palette
from sgdf_lab.support.figures import STYLE, plain


def eigenvalues(spectra: Mapping[str, Spectrum]) -> Figure:
    """A histogram of the largest eigenvalues for each, with the largest and the trace as text."""
    values = np.concatenate([s.eigenvalues for s in spectra.values()])
    logarithmic = bool(values.min() > 0 and values.max() > 30 * values.min())
    bins = bin_edges(values, logarithmic)
    with rc_context(STYLE):
        figure, axes = panels(len(spectra), 3.2, 2.5)
        tallest = max(np.histogram(s.eigenvalues, bins)[0].max() for s in spectra.values())
        for number, (ax, (label, spectrum)) in enumerate(zip(axes, spectra.items(), strict=True)):
            ax.hist(
                spectrum.eigenvalues, bins, color=colour(label), edgecolor="white", linewidth=0.4
            )
            ax.set_title(narrow(label), loc="left", color=colour(label))
            ax.set(ylim=(0, 1.45 * tallest), xlim=(bins[0], bins[-1]), xlabel="eigenvalue")
            if number % columns_for(len(axes)) == 0:
                ax.set_ylabel("number")
            ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            if logarithmic:
                ax.set_xscale("log")
                ax.xaxis.set_minor_formatter(NullFormatter())
            ax.text(0.98, 0.97, caption(spectrum), transform=ax.transAxes, ha="right", va="top")
        first = next(iter(spectra.values()))
        count = len(first.eigenvalues)
        title = f"The {count} largest eigenvalues of the Hessian"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        state_conditions(figure, first.images, first.mode)
    return figure


def bin_edges(values: Any, logarithmic: bool, count: int = 40) -> Any:
    low, high = float(values.min()), float(values.max())
    if logarithmic:
        return np.geomspace(low / 1.05, high * 1.05, count + 1)
    low = min(low, 0.0)  # from zero on, so that lengths compare
    more = 0.03 * (high - low) or 1.0
    return np.linspace(low - (more if low < 0 else 0), high + more, count + 1)


def caption(spectrum: Spectrum) -> str:
    error = spectrum.trace_standard_error
    trace = f"trace {spectrum.trace:.4g}" + (f" ± {error:.2g}" if error else "")
    return f"{trace}\n$\\lambda_{{\\mathrm{{max}}}}$ {spectrum.largest:.4g}"


def density(spectra: Mapping[str, Spectrum]) -> Figure:
    """The density of all eigenvalues on a logarithmic scale: most are near zero, few far away."""
    with rc_context(STYLE):
        figure, (ax,) = panels(1, 7, 3.8)
        for label, dash in dashes(spectra).items():
            spectrum = spectra[label]
            if spectrum.grid is None or spectrum.density is None:
                raise ValueError(f"{label} was measured without its density")
            # Nothing is drawn below a hundredth of the height of a single eigenvalue.
            one = 1 / spectrum.parameters / (KERNEL_WIDTH * np.ptp(spectrum.grid))
            seen = np.where(spectrum.density > 0.01 * one, spectrum.density, np.nan)
            ax.plot(spectrum.grid, seen, dash, color=colour(label), lw=1.2, label=plain(label))
        largest = [spectrum.largest for spectrum in spectra.values()]
        if max(largest) > 10 * min(largest) > 0:  # linear near zero
            ax.set_xscale("symlog", linthresh=10.0 ** math.floor(math.log10(min(largest))))
        ax.set(yscale="log", xlabel="eigenvalue", ylabel="density")
        ax.axvline(0, color=palette.GREY, lw=0.6, zorder=0)
        ax.legend(frameon=False)
        ax.set_title("Density of the Hessian's eigenvalues", loc="left")
        first = next(iter(spectra.values()))
        state_conditions(figure, first.images, first.mode)
    return figure

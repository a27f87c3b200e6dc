"""Figures of the errors of gradient estimates."""

from collections.abc import Mapping

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.instruments.error_statistics import EstimatorErrors
from sgdf_lab.instruments.figures.layout import legend_below, panels
from sgdf_lab.support import palette
from sgdf_lab.support.figures import STYLE

PARTS = {"bias2": "squared bias", "variance": "variance", "mse": "mean squared error"}
NOT_COMPARED = ("g", "sgd-cm")  # with the average: their errors are far larger
ESTIMATOR_LOOKS = {  # of the estimators: label, colour, dash
    "g": ("g, raw", palette.BLACK, "-"),
    "sgd-cm": ("SGD-CM", palette.SKY, "-"),
    "sgd-ema": ("SGD-EMA = (1 - β) SGD-CM", palette.PURPLE, "-"),
    "ema": ("EMA, bias-corrected", palette.BLUE, "--"),
    "sgdf": ("SGDF (2K)", palette.VERMILION, "-"),
    "sgdf-k": ("SGDF with K", palette.ORANGE, "--"),
    "sgdf-root": ("SGDF with √K", palette.BROWN, ":"),
}


def estimators_in(errors: EstimatorErrors) -> list[str]:
    return list(errors.measurements[0].errors)


def compared(names: list[str]) -> list[str]:
    """Those whose errors are shown relative to the average's, if the average was measured."""
    return [name for name in names if name not in NOT_COMPARED] if "ema" in names else []


# --- over the steps of a training -----------------------------------------------------------------


def errors_by_step(errors: EstimatorErrors) -> Figure:
    """Squared bias, variance, their sum, and that sum relative to the moving average's.

    Bands are standard errors. Lines break where a value is within two standard errors of 0. The
    grey line is the signal: the error of estimating 0.
    """
    steps = [m.step for m in errors.measurements]
    signal = [m.signal for m in errors.measurements]
    names = estimators_in(errors)
    with rc_context(STYLE):
        figure, axes = panels(4 if compared(names) else 3, 3.1, 3.6)
        for ax, (part, title) in zip(axes[:3], PARTS.items(), strict=True):
            for name in names:
                draw_line(ax, errors, name, part)
            grey = {"color": palette.GREY, "linewidth": 5, "alpha": 0.3, "zorder": 0}
            ax.plot(steps, signal, label="|g*|², the signal", **grey)
            ax.set(yscale="log", xlabel="step", title=title, ylim=limits(errors))
            ax.label_outer()
        axes[0].set_ylabel("mean over coordinates")
        if compared(names):
            draw_ratios(axes[-1], errors)
        legend_below(figure, axes[0], 4, fontsize=9)
        figure.suptitle(
            f"Estimates of the gradient along {errors.optimizer}, batch {errors.batch} of "
            f"{errors.images} images"
        )
    return figure


def limits(errors: EstimatorErrors) -> tuple[float, float]:
    """Of the axes: down to the smallest variance, but at most seven orders of magnitude."""
    parts = [part for m in errors.measurements for part in m.errors.values()]
    high = max(part.mse.value for part in parts) * 2
    return max(min(part.variance.value for part in parts) / 2, high / 1e7), high


def draw_line(ax: Axes, errors: EstimatorErrors, name: str, part: str) -> None:
    """A line with its band, broken where a value is within two standard errors of 0."""
    label, shade, dash = ESTIMATOR_LOOKS[name]
    values = [getattr(m.errors[name], part) for m in errors.measurements]
    middle = np.array([v.value if v.value > 2 * v.error else np.nan for v in values])
    spread = np.array([v.error for v in values])
    steps = [m.step for m in errors.measurements]
    ax.plot(steps, middle, dash, color=shade, label=label, linewidth=1.5)
    ax.fill_between(steps, middle - spread, middle + spread, color=shade, alpha=0.15, linewidth=0)


def draw_ratios(ax: Axes, errors: EstimatorErrors) -> None:
    """Mean squared errors relative to the average's; the axis fits those of the filter."""
    steps = [m.step for m in errors.measurements]
    reach = 1.05
    for name in compared(estimators_in(errors)):
        _, shade, dash = ESTIMATOR_LOOKS[name]
        ratios = [m.errors[name].mse.value / m.errors["ema"].mse.value for m in errors.measurements]
        ax.plot(steps, ratios, dash, color=shade, linewidth=1.5)
        if name.startswith("sgdf"):
            reach = max(reach, *ratios, *(1 / ratio for ratio in ratios))
    ends = reach**-1.1, reach**1.1  # logarithmic: twice the error is as far from 1 as half of it
    ax.set(yscale="log", ylim=ends, xlabel="step", title="error / EMA's")
    ticks = np.geomspace(1 / reach, reach, 5)
    ax.set_yticks(ticks, [f"{tick:.2g}" for tick in ticks])
    ax.minorticks_off()


# --- at several epochs of a training --------------------------------------------------------------


def errors_by_epoch(by_epoch: Mapping[int, EstimatorErrors]) -> Figure:
    """The errors from several epochs on, each summed over its measured steps but the first."""
    first = next(iter(by_epoch.values()))
    names = estimators_in(first)
    with rc_context(STYLE):
        figure, axes = panels(4 if compared(names) else 3, 3.1, 3.6)
        draw_shares_by_epoch(axes[:3], by_epoch, names)
        if compared(names):
            draw_ratios_by_epoch(axes[3], by_epoch, names)
        legend_below(figure, axes[0], 4, fontsize=9)
        figure.suptitle(
            f"Estimates of the gradient along {first.optimizer}, batch {first.batch} of "
            f"{first.images} images, from several epochs on"
        )
    return figure


def draw_shares_by_epoch(
    axes: list[Axes], by_epoch: Mapping[int, EstimatorErrors], names: list[str]
) -> None:
    """Squared bias, variance and error over the signal.

    The axes reach down to the smallest variance: a squared bias far below cannot be measured.
    """
    epochs = sorted(by_epoch)

    def shares(name: str, part: str) -> list[float]:
        ordered = [by_epoch[epoch] for epoch in epochs]
        return [errors.share(name, part, errors.after_the_first) for errors in ordered]

    low = min(min(shares(name, "variance")) for name in names) / 2
    for ax in axes[1:]:
        ax.sharey(axes[0])
    for ax, (part, title) in zip(axes, PARTS.items(), strict=True):
        for name in names:
            label, shade, dash = ESTIMATOR_LOOKS[name]
            visible = [value if value > low else np.nan for value in shares(name, part)]
            ax.plot(epochs, visible, dash, color=shade, marker="o", ms=3.5, lw=1.5, label=label)
        ax.axhline(1, color=palette.GREY, linewidth=5, alpha=0.3, zorder=0, label="the signal")
        ax.set(yscale="log", xlabel="epoch", title=title)
        ax.label_outer()
    axes[0].set_ylabel("over the signal |g*|²")


def draw_ratios_by_epoch(
    ax: Axes, by_epoch: Mapping[int, EstimatorErrors], names: list[str]
) -> None:
    """Mean squared errors relative to the average's, with two standard errors."""
    epochs = sorted(by_epoch)
    ordered = [by_epoch[epoch] for epoch in epochs]
    for name in compared(names):
        _, shade, dash = ESTIMATOR_LOOKS[name]
        ratios = [errors.ratio(name, since=errors.after_the_first) for errors in ordered]
        ax.errorbar(
            epochs, [r.value for r in ratios], [2 * r.error for r in ratios],
            color=shade, linestyle=dash, marker="o", ms=3.5, lw=1.5, capsize=2,
        )  # fmt: skip
    ax.set(xlabel="epoch", title="error / EMA's (± 2 se)")

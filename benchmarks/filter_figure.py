"""Draw what the filter does to one coordinate of a gradient.

    python benchmarks/filter_figure.py

Writes docs/figures/filter-signal.svg: a signal that stands still, jumps and stands still again,
noise of variance 1, and one outlier.
"""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt

from sgdf.filter import bias_corrections, wiener_filter, wiener_gain
from sgdf_lab.support.figures import write_svg
from sgdf_lab.support.palette import BLACK, BLUE, GREY, VERMILION

STEPS, JUMP, OUTLIER = 160, 80, 130
BETAS, EPS = (0.9, 0.999), 1e-8
FILE = Path(__file__).parents[1] / "docs" / "figures" / "filter-signal"


def follow(gradients):
    """m^, g^ and K at every step."""
    m = s = 0.0
    rows = []
    for step, g in enumerate(gradients, start=1):
        factors = bias_corrections(step, *BETAS)
        estimate, m, s = wiener_filter(g, m, s, factors, beta1=BETAS[0], beta2=BETAS[1], eps=EPS)
        average = m / factors.trend
        rows.append((average, estimate, wiener_gain(s * factors.fluctuation, g - average, EPS)))
    return np.array(rows).T


def draw():
    steps = np.arange(1, STEPS + 1)
    signal = np.where(steps < JUMP, 3.0, 0.0)
    gradients = signal + np.random.default_rng(1).normal(size=STEPS)
    gradients[OUTLIER] += 8
    average, estimate, gain = follow(gradients)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7.5, 4.6), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    above.plot(steps, gradients, ".", color=GREY, markersize=4, label="g, the noisy gradient")
    above.plot(steps, signal, color=BLACK, linewidth=1, label="the true gradient")
    above.plot(steps, average, color=BLUE, label=r"$\hat{m}$, the moving average")
    above.plot(steps, estimate, color=VERMILION, label=r"$\hat{g}$, the filter's estimate")
    above.set_ylabel("one coordinate")
    above.legend(frameon=False, ncols=2, fontsize=9)
    below.plot(steps, gain, color=VERMILION)
    below.set(ylim=(0, 1), xlabel="step", ylabel="gain K")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    print(f"wrote {write_svg(draw(), FILE)}")

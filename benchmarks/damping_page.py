"""The page docs/damping.md, made from the record of benchmarks/damping.py: blocks and figures.

What the record does not have yet is left out: an experiment that was stopped is shown as far as
it came, and the block "status" says what is missing.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from damping import Case, Experiment, Setting, Text, chosen_rate, rates_of
from damping_run import fitted_factor
from sgdf_lab.instruments.figures import legend_below
from sgdf_lab.support import palette
from sgdf_lab.support.figures import STYLE, write_svg
from sgdf_lab.support.pages import markdown_table
from sgdf_lab.theory.damping import simulate, slowest

Record = Mapping[str, Any]
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
CLEAR = 2  # standard errors
KEPT = {"without": "without steep directions", "only": "only along them"}
METRICS = {"plain": "as they are", "adam": "divided as in Adam"}


class Mean(NamedTuple):
    """A mean and its standard error, NaN for a single number."""

    value: float
    error: float
    n: int

    def words(self, digits: int = 3, sign: str = "") -> str:
        spread = "" if math.isnan(self.error) else f" ± {self.error:.{digits}f}"
        return f"{self.value:{sign}.{digits}f}{spread}".replace("-", "−")

    @property
    def clear(self) -> bool:
        return abs(self.value) > CLEAR * self.error


def mean(values: Sequence[float]) -> Mean:
    x = np.asarray(values, dtype=float)
    error = float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan
    return Mean(float(x.mean()), error, len(x))


# --- what the record says -------------------------------------------------------------------------


class Found:
    """The record, by what the page asks."""

    def __init__(self, record: Record) -> None:
        case = dict(record["case"])
        self.case = Case(**{**case, "setting": Setting(**case["setting"])})
        self.record, self.rows = record, record["rows"]
        self.beta1 = record["betas"][0]
        self.compared = self.case.compared

    def missing(self) -> list[str]:
        experiment = Experiment(self.case, Text(np.zeros(0), np.zeros(0)), dict(self.record))
        return [key for key, _ in experiment.plan() if key not in self.rows]

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """With those that were added for the lead and the projection."""
        return (*self.case.seeds, *self.case.added_seeds)

    def results(
        self, gain: float, step: str = "adamw", seeds: Sequence[int] | None = None
    ) -> dict[int, dict[str, Any]]:
        rows = {s: self.rows.get(f"result {step}, gain {gain:g}, seed {s}")
                for s in seeds or self.case.seeds}  # fmt: skip
        return {seed: row for seed, row in rows.items() if row}

    def leads(self, rows: Mapping[int, Mapping[str, Any]], step: str = "adamw") -> list[float]:
        """How far below the loss without a gain, seed by seed."""
        base = self.results(0.0, step, self.all_seeds)
        return [base[s]["loss"] - row["loss"] for s, row in rows.items() if s in base]

    def projected(self, kept: str) -> dict[int, dict[str, Any]]:
        rows = {s: self.rows.get(f"projection {kept}, seed {s}") for s in self.all_seeds}
        return {seed: row for seed, row in rows.items() if row}

    def corrections(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Runs with the whole correction, and those that lose or keep a part: the same seeds."""
        whole = self.results(self.compared, seeds=self.all_seeds)
        found = {"whole": whole, **{k: self.projected(k) for k in KEPT}}
        base = self.results(0.0, seeds=self.all_seeds)
        seeds = [s for s in base if all(s in rows for rows in found.values())]
        return {name: {s: rows[s] for s in seeds} for name, rows in found.items()}

    def trained(self, step: str = "adamw") -> list[float]:
        """The gains whose results are all there."""
        return [g for g in self.case.gains if len(self.results(g, step)) == len(self.case.seeds)]

    def best_trained(self, step: str = "adamw") -> float:
        """The gain with the lowest mean loss."""
        means = {g: mean([r["loss"] for r in self.results(g, step).values()]).value
                 for g in self.trained(step)}  # fmt: skip
        return min(means, key=means.__getitem__)

    # --- errors and innovations ---

    def terms(self, gain: float, metric: str, part: slice = slice(None)) -> np.ndarray:
        """Seeds x (A, B) of the squared error A + 2 B c + c^2, in units of (g - m^)^2."""
        rows = []
        for row in self.results(gain).values():
            terms = np.array([error[metric] for error in row["errors"]])[part]
            rows.append((terms[:, :2] / terms[:, 2:]).mean(0))
        return np.array(rows)

    def relative_error(self, gain: float, metric: str, c: float) -> Mean:
        """The squared error of the estimate with c over that of m^, along runs with `gain`."""
        a, b = self.terms(gain, metric).T
        return mean(1 + (2 * c * b + c**2) / a)

    def best_estimating(self, gain: float, metric: str, part: slice = slice(None)) -> Mean:
        """The c with the least squared error."""
        return mean(-self.terms(gain, metric, part)[:, 1])

    def thirds(self) -> list[slice]:
        """The steps of the errors, in three parts."""
        row = next(iter(self.results(0.0).values()))
        count = len(row["errors"])
        edges = [round(i * count / 3) for i in range(4)]
        return [slice(*pair) for pair in itertools.pairwise(edges)]

    def correlations(self, gain: float, metric: str) -> np.ndarray:
        """Seeds x windows x layers, and all layers together in the last place."""
        return np.array([[window[metric] for window in row["correlations"]]
                         for row in self.results(gain).values()])  # fmt: skip

    # --- steep directions ---

    def points(self, gain: float = 0.0) -> dict[tuple[int, int], dict[str, Any]]:
        """By step and seed."""
        keys = {(p, s): f"directions on gain {gain:g}, step {p}, seed {s}"
                for p in self.case.points for s in self.case.seeds}  # fmt: skip
        return {where: self.rows[key] for where, key in keys.items() if key in self.rows}

    def factors(self, gain: float) -> list[tuple[float, float]]:
        """For every kick the factor that fits and the formula's."""
        return [
            (fitted_factor(kick), slowest(row["lr"] * value, self.beta1, gain))
            for row in self.points().values()
            for kick, value in zip(row["branches"][f"{gain:g}"]["kicks"], row["eigenvalues"],
                                   strict=False)
        ]  # fmt: skip

    def swings(self, gain: float) -> list[float]:
        """At every point the loss that is held in the swing, in nats."""
        return [sum(row["branches"][f"{gain:g}"]["swing"]) for row in self.points().values()]


# --- blocks ---------------------------------------------------------------------------------------


def blocks(record: Record) -> dict[str, str]:
    """By name, what stands between the comments of the page."""
    found = Found(record)
    return {
        "status": status(found),
        "verdicts": verdicts_table(found),
        "losses": losses_table(found),
        "muon": muon_table(found),
        "best": best_table(found),
        "directions": directions_table(found),
        "projection": projection_table(found),
        "rates": rates_table(found),
    }


MISSING = {  # by how the key of a row begins
    "rate muon": "the Muon step's rates",
    "result muon": "the Muon step",
    "rate": "rates of AdamW",
    "result": "results with other gains",
    "projection": "projections",
    "directions": "directions",
}


def status(found: Found) -> str:
    seconds = sum(row["seconds"] for row in found.rows.values())
    left = Counter(next(name for start, name in MISSING.items() if key.startswith(start))
                   for key in found.missing())  # fmt: skip
    words = ", ".join(f"{name} ({count})" for name, count in left.items()) or "nothing"
    machine = found.record["machine"]
    return (
        f"\n{len(found.rows)} rows, {seconds / 60:.1f} core-minutes, {machine['device']}, torch "
        f"{machine['torch']}. The command: `{found.record['command']}`. Not measured "
        f"(with the number of runs): {words}.\n"
    )


def verdicts_table(found: Found) -> str:
    rows = [[name, numbers, word] for name, (numbers, word) in verdicts(found).items()]
    return "\n" + markdown_table(["", "measured", "the hypothesis"], rows) + "\n"


def verdicts(found: Found) -> dict[str, tuple[str, str]]:
    """The points of the protocol: the numbers, and "for", "against" or "not clear"."""
    told = {"the gain leads at all": lead_verdict(found)}
    if found.points():
        told["steep directions reach x = 1"] = steep_verdict(found)
        told["kicks decay faster with the gain"] = kick_verdict(found)
        told["the run's own swing is smaller"] = swing_verdict(found)
    if len(found.trained()) == len(found.case.gains):
        told["the best gain for training is above the best for estimating"] = gain_verdict(found)
    if found.corrections()["whole"]:
        told["the lead goes without steep directions, and stays with only them"] = (
            projection_verdict(found)
        )
    return told


def lead_verdict(found: Found) -> tuple[str, str]:
    lead = mean(found.leads(found.results(found.compared, seeds=found.all_seeds)))
    clear = lead.clear and lead.value > 0
    return (
        f"{lead.words(4)} nats at c = {found.compared:g}; {lead.n} seeds",
        "can be tested" if clear else "no clear lead to explain",
    )


def steep_verdict(found: Found) -> tuple[str, str]:
    largest = {
        p: mean([r["lr"] * r["eigenvalues"][0] for (q, _), r in found.points().items() if q == p])
        for p in sorted({p for p, _ in found.points()})
    }
    words = ", ".join(f"{x.value:.2g} at step {p}" for p, x in largest.items())
    reached = sum(x.value >= 1 for x in largest.values())
    return f"largest x {words}", "for" if 2 * reached > len(largest) else "against"


def kick_verdict(found: Found) -> tuple[str, str]:
    none, gain = (np.array(found.factors(g)) for g in (0.0, found.compared))
    measured, formula = (mean(none[:, i] - gain[:, i]) for i in (0, 1))
    share = measured.value / formula.value
    return (
        f"factor {none[:, 0].mean():.3f} without, {gain[:, 0].mean():.3f} with; formula "
        f"{none[:, 1].mean():.3f} and {gain[:, 1].mean():.3f}",
        "for" if share >= 0.5 else "against",
    )


def swing_verdict(found: Found) -> tuple[str, str]:
    none, gain = (np.array(found.swings(g)) for g in (0.0, found.compared))
    change = mean(np.log(gain / none))
    word = "not clear" if not change.clear else "for" if change.value < 0 else "against"
    return (
        f"{none.mean():.4f} nats without, {gain.mean():.4f} with; ratio "
        f"{math.exp(change.value):.2f}",
        word,
    )


def gain_verdict(found: Found) -> tuple[str, str]:
    best = found.best_trained()
    estimating = found.best_estimating(0.0, "adam")
    white = found.correlations(0.0, "adam")[:, :, -1].mean() / found.beta1
    larger = best > estimating.value and best > white
    return (
        f"trains best at {best:g}; estimates best at {estimating.words(2)}; by innovations "
        f"{white:.2f}".replace("-", "−"),
        "for" if larger else "against",
    )


def projection_verdict(found: Found) -> tuple[str, str]:
    lead, without, only = (mean(found.leads(rows)) for rows in found.corrections().values())
    words = (f"lead {lead.words(4)}; without {without.words(4)}; only {only.words(4)}; "
             f"{lead.n} of {len(found.all_seeds)} seeds")  # fmt: skip
    if not (lead.clear and lead.value > 0):
        return words, "not clear"
    gone, kept = without.value < lead.value / 2, only.value > lead.value / 2
    return words, "for" if gone and kept else "not clear" if gone or kept else "against"


def losses_table(found: Found) -> str:
    """By gain: rate, loss, lead, and the error of the estimate over that of m^."""
    rows = []
    for gain in found.case.gains:
        results = found.results(gain)
        if not results:
            continue
        loss = mean([row["loss"] for row in results.values()])
        lead = mean(found.leads(results)).words(4, "+") if gain else "–"
        errors = [found.relative_error(0.0, metric, gain).words() for metric in METRICS]
        rate = next(iter(results.values()))["lr"]
        rows.append([f"{gain:g}", f"{rate:g}", loss.words(4), lead, *errors])
    header = [
        "c",
        "rate",
        "loss",
        "lead over c = 0",
        *(f"error / m^'s, {w}" for w in METRICS.values()),
    ]
    return "\n" + markdown_table(header, rows, right=1) + "\n"


def best_table(found: Found) -> str:
    """The best weight by error and by innovations, in the three parts of the run."""
    rows = []
    for gain in (0.0, found.compared):
        for metric, words in METRICS.items():
            windows = found.correlations(gain, metric)[:, :, -1]
            edges = [round(i * windows.shape[1] / 3) for i in range(4)]
            parts = []
            for i, part in enumerate(found.thirds()):
                correlation = mean(windows[:, edges[i] : edges[i + 1]].mean(1) / found.beta1)
                error = found.best_estimating(gain, metric, part)
                parts.append(f"{error.words(2)}; {correlation.words(2)}")
            rows.append([f"c = {gain:g}, {words}", *parts])
    return "\n" + markdown_table(["by error; by innovations", "first third", "second", "last"],
                                 rows) + "\n"  # fmt: skip


def directions_table(found: Found) -> str:
    rows = []
    for point in found.case.points:
        here = [row for (p, _), row in found.points().items() if p == point]
        if not here:
            continue
        x = np.array([np.array(row["eigenvalues"]) * row["lr"] for row in here])
        swings = [
            mean([sum(row["branches"][f"{g:g}"]["swing"]) for row in here]).words(4)
            for g in (0.0, found.compared)
        ]
        rows.append([f"{point}", f"{x[:, 0].mean():.2g}", f"{x[:, -1].mean():.2g}", *swings])
    count = found.case.directions
    header = ["step", "largest x", f"x of number {count}", "nats in the swing, c = 0",
              f"c = {found.compared:g}"]  # fmt: skip
    return "\n" + markdown_table(header, rows, right=1) + "\n"


def muon_table(found: Found) -> str:
    """By gain: rate, loss and lead of the Muon step."""
    rows = []
    for gain in found.trained("muon"):
        results = found.results(gain, "muon")
        loss = mean([row["loss"] for row in results.values()])
        lead = mean(found.leads(results, "muon")).words(4, "+") if gain else "–"
        rows.append([f"{gain:g}", f"{results[found.case.seeds[0]]['lr']:g}", loss.words(4), lead])
    return "\n" + markdown_table(["c", "rate", "loss", "lead over c = 0"], rows, right=1) + "\n"


def projection_table(found: Found) -> str:
    """Leads over c = 0 by seed, and how much of the correction is left."""
    kinds = found.corrections()
    leads = {name: found.leads(rows) for name, rows in kinds.items()}
    rows = [
        [f"seed {seed}", *(f"{own[i]:+.4f}".replace("-", "−") for own in leads.values())]
        for i, seed in enumerate(kinds["whole"])
    ]
    rows.append(["mean", *(mean(own).words(4, "+") for own in leads.values())])
    inside = {k: np.mean([row["share"] for row in kinds[k].values()]) for k in KEPT}
    same = [np.mean([row["overlap"] for row in kinds[k].values()]) for k in KEPT]
    rows.append(
        ["share of its square", "1", f"{1 - inside['without']:.3f}", f"{inside['only']:.3f}"]
    )
    rows.append(["overlap", "–", *(f"{share:.2f}" for share in same)])
    header = ["lead over c = 0", "the whole correction", *KEPT.values()]
    return "\n" + markdown_table(header, rows, right=1) + "\n"


def rates_table(found: Found) -> str:
    """The losses of the seed of the choice; the chosen ones in bold."""
    rates = (*found.case.searched, *found.case.larger)
    rows = []
    for step in ("adamw", "muon"):
        for gain in found.case.gains:
            keys = {r: f"rate {step}, gain {gain:g}, lr {r:g}" for r in rates}
            if not all(keys[r] in found.rows for r in found.case.searched):
                continue
            best = chosen_rate(found.rows, rates_of(found.case, step), gain, step)
            cells = [loss_words(found.rows.get(key), rate == best) for rate, key in keys.items()]
            name = {"adamw": "AdamW", "muon": "Muon"}[step]
            rows.append([f"{name}, c = {gain:g}", *cells])
    return "\n" + markdown_table(["", *(f"{r:g}" for r in rates)], rows, right=1) + "\n"


def loss_words(row: Mapping[str, Any] | None, chosen: bool) -> str:
    if row is None:
        return "–"
    words = "broke" if row["loss"] is None else f"{row['loss']:.3f}"
    return f"**{words}**" if chosen else words


# --- figures --------------------------------------------------------------------------------------

KINDS = {  # by the end of a layer's name: label, colour
    "embedding": ("embedding and head", palette.BLACK),
    "qkv": ("queries, keys, values", palette.BLUE),
    "attention.out": ("attention out", palette.SKY),
    "mlp.into": ("MLP in", palette.VERMILION),
    "mlp.out": ("MLP out", palette.ORANGE),
    "norm": ("norms", palette.GREY),
}


def all_figures(record: Record) -> dict[str, Figure]:
    """By the name of the file."""
    found = Found(record)
    return {
        "damping-innovations": innovations(found),
        "damping-gains": gains(found),
        "damping-directions": directions(found),
    }


def draw_figures(record: Record) -> None:
    for name, figure in all_figures(record).items():
        print("wrote", write_svg(figure, FIGURES / name))


def panels(shared: bool, height: float = 3.9) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots(1, 2, sharey=shared)
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr,call-arg]
    return figure, axes


def innovations(found: Found) -> Figure:
    """The lag-1 correlation of the innovations by kind of layer, without and with a gain."""
    rows = next(iter(found.results(0.0).values()))
    ends = np.array([window["step"] for window in rows["correlations"]])
    with rc_context(STYLE):
        figure, axes = panels(True)
        for ax, gain in zip(axes, (0.0, found.compared), strict=True):
            values = found.correlations(gain, "adam").mean(0)
            ax.axhline(0, color=palette.GREY, linewidth=1)
            for ending, (label, shade) in KINDS.items():
                which = [i for i, name in enumerate(rows["layers"])
                         if re.search(rf"{re.escape(ending)}$", name)]  # fmt: skip
                middle = values[:, which].mean(1)
                ax.plot(ends, middle, color=shade, marker="o", ms=3.5, label=label)
            ax.plot(ends, values[:, -1], color=palette.PURPLE, lw=2.5, ls="--", label="all")
            title = f"With the gain c = {gain:g}" if gain else "Without a gain"
            ax.set(title=title, xlabel=f"step (the last of {found.case.window})")
        axes[0].set_ylabel("lag-1 correlation")
        legend_below(figure, axes[0], 4, fontsize=9)
    return figure


def gains(found: Found) -> Figure:
    """The error of the estimate and the loss at the end, by gain."""
    with rc_context(STYLE):
        figure, (left, right) = panels(False)
        c = np.linspace(0, max(found.case.gains), 61)
        looks = {"plain": (palette.BLUE, "-"), "adam": (palette.VERMILION, "-")}
        for metric, (shade, dash) in looks.items():
            errors = [found.relative_error(0.0, metric, one) for one in c]
            value, spread = (np.array([getattr(e, n) for e in errors]) for n in ("value", "error"))
            left.plot(c, value, dash, color=shade, label=METRICS[metric])
            left.fill_between(
                c, value - 2 * spread, value + 2 * spread, color=shade, alpha=0.18, lw=0
            )
        left.axhline(1, color=palette.GREY, linewidth=1)
        left.set(title="As an estimate", xlabel="gain c", ylabel="squared error / that of m^")
        left.legend(frameon=False, fontsize=9)
        trained = [g for g in found.case.gains if found.results(g)]
        leads = [mean(found.leads(found.results(g))) for g in trained]
        right.axhline(0, color=palette.GREY, linewidth=1)
        right.errorbar(
            trained, [1000 * one.value for one in leads],
            [0 if math.isnan(one.error) else 2000 * one.error for one in leads],
            color=palette.PURPLE, marker="o", ms=5, capsize=3,
        )  # fmt: skip
        right.set(
            title="As a step", xlabel="gain c", ylabel="lead over c = 0, thousandths of a nat"
        )
        right.set_xlim(left.get_xlim())
    return figure


def directions(found: Found) -> Figure:
    """A kick along the steepest direction, and the lead with and without steep directions."""
    with rc_context(STYLE):
        figure, (left, right) = panels(False)
        draw_kick(left, found)
        right.axhline(0, color=palette.GREY, linewidth=1)
        names = ["whole\ncorrection", "without steep\ndirections", "only along\nthem"]
        shades = (palette.PURPLE, palette.GREEN, palette.ORANGE)
        for i, rows in enumerate(found.corrections().values()):
            if not rows:
                continue
            shade = shades[i]
            leads = [1000 * lead for lead in found.leads(rows)]
            told = mean(leads)
            spread = None if math.isnan(told.error) else [2 * told.error]
            right.bar(i, told.value, 0.6, color=shade, alpha=0.45, yerr=spread, capsize=4,
                      ecolor=palette.INK)  # fmt: skip
            right.plot([i] * len(leads), leads, "o", color=shade, ms=5)
        right.set_xticks(range(3), names)
        right.set_xlim(-0.6, 2.6)
        right.set(title="The lead", ylabel="over c = 0, thousandths of a nat")
    return figure


def draw_kick(ax: Axes, found: Found) -> None:
    """At the middle point of the first seed."""
    points = found.points()
    if not points:
        return
    where = (found.case.points[len(found.case.points) // 2], found.case.seeds[0])
    row = points.get(where) or next(iter(points.values()))
    x = row["lr"] * row["eigenvalues"][0]
    for gain, shade in ((0.0, palette.BLUE), (found.compared, palette.VERMILION)):
        response = row["branches"][f"{gain:g}"]["kicks"][0]
        t = np.arange(len(response))
        ax.plot(t, response, color=shade, lw=2, label=f"c = {gain:g}, measured")
        formula = simulate(x, found.beta1, gain, len(response) - 1)
        ax.plot(t, formula, color=shade, lw=1.2, ls="--", label="the formula")
    ax.axhline(0, color=palette.GREY, linewidth=1)
    ax.set(title=f"After a kick, x = {x:.2g}", xlabel="steps after the kick",
           ylabel="displacement that is left")  # fmt: skip
    ax.legend(frameon=False, fontsize=9)

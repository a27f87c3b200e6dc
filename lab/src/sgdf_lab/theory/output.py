"""What checked statements are written to: results.json, theory.html and figures."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.support import document, provenance
from sgdf_lab.support import figures as shared
from sgdf_lab.support.document import contents, html_table, text
from sgdf_lab.support.files import write_json
from sgdf_lab.support.palette import AXIS, GRID
from sgdf_lab.theory.result import CONDITION, FAILS, HOLDS, OURS, Check, Panel, Result

# --- Draw the panels of a statement with matplotlib

STYLE: dict[Any, Any] = shared.STYLE | {
    "axes.titlesize": 10,
    "axes.edgecolor": AXIS,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
}
#: Symbols that the font renders badly, as formulas.
FORMULAS = {
    "m̂ₜ₋₁": r"$\hat{m}_{t-1}$",
    "m̂ₜ": r"$\hat{m}_t$",
    "m̂": r"$\hat{m}$",
    "ŝ": r"$\hat{s}$",
    "ĝ": r"$\hat{g}$",
    "mₜ": r"$m_t$",
    "αₜ²": r"$\alpha_t^2$",
    "αₜ": r"$\alpha_t$",
    "ξₜ₊₁": r"$\xi_{t+1}$",
    "ξₜ": r"$\xi_t$",
    "θ₁": r"$\theta_1$",
    "θᵢ": r"$\theta_i$",
    "β₁": r"$\beta_1$",
    "β₂": r"$\beta_2$",
}
PATTERN = re.compile("|".join(map(re.escape, FORMULAS)))


def draw(panels: Sequence[Panel]) -> Figure:
    """Draw the panels side by side."""
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(panels), 3.3))
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(row, panels, strict=True):
            draw_panel(axes, panel)
        return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        label = with_formulas(curve.label)
        axes.plot(curve.x, curve.y, curve.style, color=curve.colour, label=label)
        if curve.band is not None:
            low = [y - b for y, b in zip(curve.y, curve.band, strict=True)]
            high = [y + b for y, b in zip(curve.y, curve.band, strict=True)]
            axes.fill_between(curve.x, low, high, color=curve.colour, alpha=0.18, linewidth=0)
    axes.set_title(with_formulas(panel.title))
    axes.set(xlabel=with_formulas(panel.xlabel), ylabel=with_formulas(panel.ylabel))
    if panel.logx:
        axes.set_xscale("log")
    if panel.logy:
        axes.set_yscale("log")
    if panel.ylim:
        axes.set_ylim(*panel.ylim)
    axes.legend()


def with_formulas(label: str) -> str:
    return PATTERN.sub(lambda symbol: FORMULAS[symbol[0]], shared.plain(label))


def write_figure(result: Result, folder: Path) -> list[Path]:
    """Write all panels of a statement as one PNG and one SVG."""
    figure = draw(result.panels)
    with rc_context(STYLE):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is done; to compute it again would take long
    return shared.write(figure, folder / result.name)


# --- All statements on one self-contained HTML page

RULES = {"paper": "as printed", "condition": "with the condition"}


def page_body(results: Sequence[Result]) -> str:
    printed = [result for result in results if result.label != OURS]
    counts = Counter(result.verdict for result in printed)
    summary = ", ".join(
        f"{counts[verdict]} {verdict.replace('holds', 'hold').replace('does not', 'do not')}"
        for verdict in (HOLDS, CONDITION, FAILS)
        if counts[verdict]
    )
    counted = f" Of {len(printed)} statements {text(summary)}." if printed else ""
    return f"""<p>Each statement of “Signal Processing Meets SGD: From Momentum to Filter” as it is
printed, beside its exact value or a simulation.{counted} A measured number counts as a
counterexample only if it differs by more than four standard errors.</p>
{contents((result.name, result.title, result.verdict) for result in results)}
{"".join(map(section, results))}"""


def minus_signs(formula: str) -> str:
    """Replace the hyphens of formulas by minus signs, which do not break lines."""
    return re.sub("(?<![A-Za-z])-|-(?![A-Za-z])", "−", formula)


def section(result: Result) -> str:
    parts = {"Claim": result.claim, "Assumed": f"{result.assumptions}."}
    if result.condition and result.verdict == CONDITION:
        parts["Left out"] = f"{result.condition}."
    words = "".join(f"<p><b>{n}:</b> {text(minus_signs(w))}</p>\n" for n, w in parts.items())
    figures = "".join(map(panel_figure, result.panels))
    rows = [check_row(check) for check in result.checks]
    warning = "" if result.verdict == HOLDS else " warning"
    return f"""<section id="{text(result.name)}">
<h2>{text(result.title)}</h2>
<p class="verdict{warning}">{text(result.verdict)}</p>
<p class="protocol"><code>{text(result.label)}</code></p>
{words}<div class="charts chart">{figures}</div>
<p>{text(minus_signs(result.explanation))}</p>
{html_table(("printed", "measured", "result"), rows)}
</section>
"""


def panel_figure(panel: Panel) -> str:
    words = text(f"{panel.title}: {panel.ylabel} against {panel.xlabel}")
    drawn = shared.inline_svg(draw([panel]), fonttype="path")
    return f'<figure role="img" aria-label="{words}">{drawn}</figure>'


def check_row(check: Check) -> list[str]:
    error = f" ± {check.error:.1g}" if check.error else ""
    kept = "holds" if check.ok else "fails"
    mark = f"{kept}, {RULES[check.under]}" if check.under in RULES else check.under
    relation = {"<=": "≤", ">=": "≥", "=": "="}[check.relation]
    printed, measured = f"{relation} {check.printed:.4g}", f"{check.measured:.4g}{error}"
    return [minus_signs(check.what), printed, measured, mark]


def source_of(record: dict[str, Any]) -> str:
    machine = record["machine"]
    return (
        f"{record['command']} (commit {record['commit']}; {machine['device']}, Python "
        f"{machine['python']}, NumPy {machine['numpy']}; {record['seconds']} s)"
    )


# --- Write checked statements to a folder: results.json, theory.html and the figures


def write_results(
    results: Sequence[Result], folder: Path, *, command: str = "", seconds: float = 0.0
) -> None:
    """Write the numbers, the page and the figures, with the command and its time on record."""
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "command": command,
        "commit": provenance.commit(),
        "machine": provenance.machine("cpu") | {"numpy": numpy.__version__},
        "seconds": round(seconds, 1),
        "statements": [result.as_json() for result in results],
    }
    write_json(folder / "results.json", record, indent=2)
    for result in results:
        write_figure(result, folder / "figures")
    title = "The paper's statements, checked"
    document.write(folder / "theory.html", title, page_body(results), source_of(record))

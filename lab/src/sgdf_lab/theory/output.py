"""What checked statements are written to: results.json, theory.html and figures."""

import base64
import io
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.support import figures as shared
from sgdf_lab.support import provenance
from sgdf_lab.support.files import write_atomically, write_json
from sgdf_lab.support.palette import GREY
from sgdf_lab.theory.result import CONDITION, FAILS, HOLDS, OURS, Check, Panel, Result

# --- Draw the panels of a statement with matplotlib

STYLE: dict[Any, Any] = shared.STYLE | {
    "axes.titlesize": 10,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
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


def svg(panel: Panel) -> bytes:
    """One panel as an SVG image, to be embedded in a page."""
    figure, target = draw([panel]), io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


def write_figure(result: Result, folder: Path) -> list[Path]:
    """Write all panels of a statement as one PNG and one SVG."""
    figure = draw(result.panels)
    with rc_context(STYLE):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is done; to compute it again would take long
    return shared.write(figure, folder / result.name)


# --- All statements on one self-contained HTML page

CLASSES = {HOLDS: "holds", CONDITION: "condition", FAILS: "fails"}
RULES = {"paper": "as printed", "condition": "with the condition", "remark": "remark"}


def render_page(results: Sequence[Result], record: dict[str, Any]) -> str:
    """The page; `record` is the content of results.json."""
    printed = [result for result in results if result.label != OURS]
    counts = Counter(result.verdict for result in printed)
    summary = ", ".join(
        f"{counts[verdict]} {verdict.replace('holds', 'hold').replace('does not', 'do not')}"
        for verdict in (HOLDS, CONDITION, FAILS)
        if counts[verdict]
    )
    counted = f" Of {len(printed)} statements {escape(summary)}." if printed else ""
    style = files("sgdf_lab.theory").joinpath("assets", "page.css").read_text("utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>SGDF: the paper's statements, checked</title>
<style>
{style}</style>
</head>
<body>
<h1>The paper's statements, checked</h1>
<p>Each statement of “Signal Processing Meets SGD: From Momentum to Filter” as it is printed, beside
its exact value or a simulation.{counted} A measured number counts as a counterexample only if it
differs by more than four standard errors.</p>
<div class="scroll"><table>
<thead><tr><th>statement</th><th>verdict</th></tr></thead>
<tbody>{"".join(summary_row(result) for result in results)}</tbody>
</table></div>
{"".join(section(result) for result in results)}
<footer>{footer(record)}</footer>
</body>
</html>
"""


def prose(text: str) -> str:
    """Escape text, and replace the hyphens of formulas by minus signs, which do not break lines."""
    return escape(re.sub("(?<![A-Za-z])-|-(?![A-Za-z])", "−", text))


def summary_row(result: Result) -> str:
    return (
        f'<tr><td><a href="#{escape(result.name)}">{escape(result.title)}</a><br>'
        f'<span class="label"><code>{escape(result.label)}</code></span></td>'
        f"<td>{badge(result)}</td></tr>\n"
    )


def badge(result: Result) -> str:
    return f'<span class="verdict {CLASSES[result.verdict]}">{escape(result.verdict)}</span>'


def section(result: Result) -> str:
    condition = (
        f"<p><b>Left out:</b> {prose(result.condition)}.</p>"
        if result.condition and result.verdict == CONDITION
        else ""
    )
    images = "".join(
        f'<img alt="{escape(panel.title)}: {escape(panel.ylabel)} against {escape(panel.xlabel)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(svg(panel)).decode()}">'
        for panel in result.panels
    )
    return f"""<section id="{escape(result.name)}">
<h2>{escape(result.title)}</h2>
<p>{badge(result)} <span class="label"><code>{escape(result.label)}</code></span></p>
<p><b>Claim:</b> {prose(result.claim)}</p>
<p><b>Assumed:</b> {prose(result.assumptions)}.</p>
{condition}
<div class="figures">{images}</div>
<p>{prose(result.explanation)}</p>
<div class="scroll checks"><table>
<thead><tr><th>check</th><th class="number">printed</th><th class="number">measured</th>
<th>result</th></tr></thead>
<tbody>{"".join(check_row(check) for check in result.checks)}</tbody>
</table></div>
</section>
"""


def check_row(check: Check) -> str:
    error = f" ± {check.error:.1g}" if check.error else ""
    if check.under == "remark":
        kind, mark = "remark", "remark"
    else:
        kind = "" if check.ok else "counter"
        mark = f"{'holds' if check.ok else 'fails'}, {RULES[check.under]}"
    relation = {"<=": "≤", ">=": "≥", "=": "="}[check.relation]
    return (
        f'<tr class="{kind}"><td>{prose(check.what)}</td>'
        f'<td class="number">{relation} {check.printed:.4g}</td>'
        f'<td class="number">{check.measured:.4g}{error}</td><td class="mark">{mark}</td></tr>\n'
    )


def footer(record: dict[str, Any]) -> str:
    machine = record["machine"]
    return escape(
        f"{record['command']} · commit {record['commit']} · {machine['device']}, "
        f"Python {machine['python']}, NumPy {machine['numpy']} · {record['seconds']} s"
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
    write_atomically(folder / "theory.html", render_page(results, record))

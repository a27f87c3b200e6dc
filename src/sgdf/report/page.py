"""One HTML page with everything in it: tables, charts, and where each number comes from.

Whatever comes from a run is text, never markup: it is escaped here, in `tables.as_html` and in
`figures.plain`. The page's own policy forbids what might slip through: no script runs but the
two written here, known by their hashes, and nothing is loaded from anywhere.
"""

import base64
import hashlib
import html
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from sgdf import __version__
from sgdf.lab.runs.config import Config
from sgdf.report import tables
from sgdf.report.figures import FONT, Figure, figures
from sgdf.report.pictures import pictures
from sgdf.report.records import Record, in_words, visible
from sgdf.report.tables import Comparison
from sgdf.support.files import explained, write_atomically


def write(
    records: Iterable[Record],
    path: Path,
    *,
    title: str,
    planned: Iterable[Config] = (),
    target: float | None = None,
    skipped: Sequence[str] = (),
) -> None:
    """Write the page; whoever opens it meanwhile sees the old one or the new one."""
    records = list(records)
    comparisons = tables.build(records, planned, target)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render(records, comparisons, title, skipped))


def render(
    records: Sequence[Record],
    comparisons: Sequence[Comparison],
    title: str,
    skipped: Sequence[str] = (),
) -> str:
    plotly = get_plotlyjs().replace("</script", "<\\/script")
    sections = "".join(section(i, comparison) for i, comparison in enumerate(comparisons))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(plotly, SCRIPT)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{text(title)}</h1>
{contents(comparisons)}
{sections}
<section id="runs">
<h2>Runs</h2>
{"".join(map(run_details, records))}
{skipped_list(skipped)}
</section>
</main>
<footer>Made by sgdf {text(__version__)} on {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
from {len(records)} run{"s" * (len(records) != 1)}. The page holds everything it shows; it loads
nothing.</footer>
<script>{plotly}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def policy(*scripts: str) -> str:
    """No script but these, no address anywhere; plotly writes its own styles."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def text(value: object) -> str:
    """Anything from outside, as text of the page."""
    return html.escape(visible(value))


# --- a comparison --------------------------------------------------------------------------------


def contents(comparisons: Sequence[Comparison]) -> str:
    if len(comparisons) < 2:
        return ""
    links = (f'<li><a href="#c{i}">{text(c.title)}</a></li>' for i, c in enumerate(comparisons))
    return f"<nav><ul>{''.join(links)}</ul></nav>"


def section(number: int, comparison: Comparison) -> str:
    notes = "".join(f"<li>{text(note)}</li>" for note in comparison.notes)
    charts = "".join(map(chart, figures(comparison.cells, comparison.set_aside)))
    return f"""<section id="c{number}">
<h2>{text(comparison.title)}</h2>
<p class="protocol">{text(comparison.protocol)}</p>
<p>{text(tables.summary(comparison))}</p>
{tables.as_html(comparison)}
<ul class="notes">{notes}</ul>
{charts}
{gallery(comparison)}
</section>
"""


def gallery(comparison: Comparison) -> str:
    shown = "".join(
        f'<figure><img src="{picture.data}" alt="{text(picture.caption)}">'
        f"<figcaption>{text(picture.caption)}</figcaption></figure>"
        for picture in pictures(comparison.cells)
    )
    return f'<h3>Pictures</h3><div class="gallery">{shown}</div>' if shown else ""


def chart(figure: Figure) -> str:
    description = f"{figure.title}. {figure.caption}"
    return f"""<figure>
<h3>{text(figure.title)}</h3>
<div class="chart" role="img" aria-label="{text(description)}"></div>
<script type="application/json">{as_data({"data": figure.data, "layout": figure.layout})}</script>
<figcaption>{text(figure.caption)}</figcaption>
</figure>
"""


def as_data(value: Any) -> str:
    """JSON that no parser of HTML can take for the end of the script or the start of another."""
    packed = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return packed.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# --- a run ---------------------------------------------------------------------------------------


def run_details(record: Record) -> str:
    environment = record.environment
    facts: dict[str, Any] = {
        "command": environment.get("command"),
        "commit": environment.get("commit"),
        "machine": environment.get("machine"),
        "sgdf": environment.get("sgdf"),
        "started": environment.get("started"),
        "started before": earlier_starts(environment),
        "error": record.error,
    }
    facts |= {name: value for name, value in record.config.as_json().items() if name != "version"}
    lines = "".join(
        f"<dt>{text(name)}</dt><dd>{described(value)}</dd>"
        for name, value in facts.items()
        if value not in (None, "", [], {})
    )
    return (
        f'<details><summary><code>{text(record.folder.name)}</code> <span class="status '
        f'{record.status}">{text(status_words(record))}</span></summary><dl>{lines}</dl></details>'
    )


def earlier_starts(environment: Mapping[str, Any]) -> list[Any]:
    """When an interrupted run was started first."""
    earlier = environment.get("earlier")
    starts = earlier if isinstance(earlier, list) else []
    return [start.get("started") for start in starts if isinstance(start, dict)]


def described(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = (f"{name} {in_words(v)}" for name, v in value.items() if v is not None)
        return text(", ".join(parts))
    if isinstance(value, list):
        return text(", ".join(map(in_words, value)))
    return text(in_words(value))


def status_words(record: Record) -> str:
    if record.finished:
        return f"finished, {record.final:.2f} {record.metric.unit}".rstrip()
    if record.status == "diverged":
        return f"diverged in epoch {len(record.metrics)}"
    return f"{record.status} at epoch {len(record.metrics)} of {record.config.epochs}"


def skipped_list(skipped: Sequence[str]) -> str:
    if not skipped:
        return ""
    lines = "".join(f"<li>{text(complaint)}</li>" for complaint in skipped)
    return f"<h3>Not read</h3><ul>{lines}</ul>"


# --- the page's own style and script -------------------------------------------------------------

STYLE = f"""
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; font: 16px/1.5 {FONT}; color: #222; background: #fff; }}
main, footer {{ max-width: 1160px; margin: 0 auto; padding: 0 20px; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; margin: 2rem 0 1rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.4rem; margin: 2.5rem 0 .25rem; overflow-wrap: anywhere; }}
h3 {{ font-size: 1.05rem; margin: 2rem 0 .5rem; }}
p {{ max-width: 46em; overflow-wrap: anywhere; }}
a {{ color: #00558a; }}
.protocol {{ color: #555; margin: 0; }}
.scroll {{ overflow-x: auto; margin: 1rem 0 .5rem; }}
table {{ border-collapse: collapse; font-size: .9rem; line-height: 1.35; }}
th, td {{ padding: .4rem .6rem; text-align: right; vertical-align: baseline; white-space: nowrap;
  font-variant-numeric: tabular-nums; }}
thead th {{ vertical-align: bottom; white-space: normal; max-width: 12em; }}
thead tr {{ border-bottom: 2px solid #222; }}
tbody tr {{ border-bottom: 1px solid #e2e2e2; }}
tbody th {{ text-align: left; position: sticky; left: 0; background: #fff; padding-left: 0;
  min-width: 11em; }}
th small {{ display: block; font-weight: 400; color: #a33c00; white-space: normal;
  max-width: 14em; }}
.notes {{ color: #555; font-size: .85rem; padding-left: 1.2em; max-width: 60em; }}
figure {{ margin: 0 0 1.5rem; }}
figcaption {{ color: #555; font-size: .85rem; }}
.chart {{ width: 100%; height: 460px; }}
.gallery {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr));
  gap: 1rem; align-items: start; }}
.gallery img {{ width: 100%; height: auto; display: block; }}
.gallery figcaption {{ overflow-wrap: anywhere; }}
details {{ border-bottom: 1px solid #e2e2e2; }}
summary {{ padding: .4rem 0; cursor: pointer; overflow-wrap: anywhere; }}
code {{ font: .9rem ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.status {{ color: #555; font-size: .9rem; margin-left: .5em; }}
.diverged, .failed {{ color: #a33c00; }}
.unfinished {{ color: #00558a; }}
dl {{ display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .15rem 1rem;
  margin: 0 0 1rem; font-size: .9rem; }}
dt {{ color: #555; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
footer {{ color: #555; font-size: .85rem; padding-top: 2rem; padding-bottom: 2rem; }}
@media (max-width: 640px) {{
  main, footer {{ padding: 0 14px; }}
  th, td {{ padding: .4rem .5rem; }}
  tbody th {{ min-width: 6.5em; white-space: normal; overflow-wrap: anywhere; }}
  .chart {{ height: 520px; }}
  dl {{ grid-template-columns: minmax(0, 1fr); gap: 0; }}
  dd {{ margin-bottom: .4rem; }}
}}
@media print {{
  @page {{ margin: 14mm; }}
  body {{ font-size: 11pt; }}
  main, footer {{ max-width: none; padding: 0; }}
  .scroll {{ overflow: visible; }}
  tbody th {{ min-width: 0; }}
  table {{ font-size: 8pt; width: 100%; }}
  th, td {{ padding: .2rem .3rem; }}
  th, td {{ white-space: normal; }}
  figure, tr, details {{ break-inside: avoid; }}
  h2, h3 {{ break-after: avoid; }}
  #runs {{ font-size: 8pt; }}
  summary {{ padding: 0; list-style: none; }}
  code {{ font-size: inherit; }}
  .chart {{ height: auto; aspect-ratio: var(--shape); overflow: hidden; }}
  .chart .svg-container {{ width: 100% !important; height: 100% !important; }}
  .chart .main-svg {{ width: 100% !important; height: auto !important; }}
  .chart .updatemenu-container, .modebar-container {{ display: none; }}
}}
"""

# One chart after another, so that the page can be read and scrolled meanwhile. On paper a chart is
# as wide as the sheet: a viewBox lets its drawing shrink to that. A finger is for scrolling.
SCRIPT = """
"use strict";
const touch = matchMedia("(pointer: coarse)").matches;
const settings = {  // the buttons by name: by default one of them sends the chart away
  responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover",
  modeBarButtons: [["toImage", "resetScale2d"]], plotlyServerURL: "",
};
function fit(chart) {
  const {width, height} = chart._fullLayout;
  chart.style.setProperty("--shape", width + " / " + height);
  for (const svg of chart.querySelectorAll(".main-svg")) {
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  }
}
async function draw(chart) {
  const {data, layout} = JSON.parse(chart.nextElementSibling.textContent);
  layout.dragmode = touch ? false : "zoom";
  await Plotly.newPlot(chart, data, layout, settings);
  fit(chart);
  chart.on("plotly_afterplot", () => fit(chart));
  await new Promise(next => setTimeout(next));
}
async function drawAll() {
  for (const chart of document.querySelectorAll(".chart")) await draw(chart);
}
const drawn = drawAll();
"""

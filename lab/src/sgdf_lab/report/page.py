"""One self-contained HTML page: tables, charts, and where each number comes from.

Whatever comes from a run is text, never markup: it is escaped here and in `charts.plain`. As a
second guard, the page's content security policy lets only its own two scripts run, identified by
their hashes, and nothing is loaded from anywhere.
"""

import base64
import hashlib
import html
import json
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from sgdf import __version__
from sgdf_lab.report import wording
from sgdf_lab.report.charts import all_charts
from sgdf_lab.report.difference_chart import difference_charts
from sgdf_lab.report.drawing import Chart, dark_colours
from sgdf_lab.report.edges import edge_warnings
from sgdf_lab.report.labels import setting_words, visible
from sgdf_lab.report.pictures import last_pictures
from sgdf_lab.report.statistics import Comparison, ComparisonRow
from sgdf_lab.report.time_charts import time_charts
from sgdf_lab.report.verdict import headline
from sgdf_lab.report.wording import TableColumn
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.support.files import explained, write_atomically

#: plotly.js with the simplest kinds of traces alone, a fifth of the complete one: MIT license.
PLOTLY = "plotly-basic.min.js"
PLOTLY_VERSION = "4.1.1"


def write(
    path: Path,
    records: Sequence[RunRecord],
    comparisons: Sequence[Comparison],
    *,
    title: str,
    skipped: Sequence[str] = (),
) -> None:
    """Write the page atomically: a reader sees the old one or the new one."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render(records, comparisons, title, skipped))


def render(
    records: Sequence[RunRecord],
    comparisons: Sequence[Comparison],
    title: str,
    skipped: Sequence[str] = (),
) -> str:
    plotly = asset(PLOTLY)
    script = asset("page.js")
    sections = "".join(section(i, comparison) for i, comparison in enumerate(comparisons))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(plotly, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>{asset("page.css")}</style>
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
from {len(records)} run{"s" * (len(records) != 1)}. The page is self-contained: it loads
nothing.</footer>
<script type="application/json" id="dark">{as_data(dark_colours())}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def asset(name: str) -> str:
    return files("sgdf_lab.report").joinpath("assets", name).read_text(encoding="utf-8")


def policy(*scripts: str) -> str:
    """Allow only these scripts, and no address; plotly sets inline styles."""
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
    """Of several comparisons: their titles and verdicts."""
    if len(comparisons) < 2:
        return ""
    links = (
        f'<li><a href="#c{i}">{text(wording.title(comparison))}</a>: {text(headline(comparison))}'
        "</li>"
        for i, comparison in enumerate(comparisons)
    )
    return f"<nav><ul>{''.join(links)}</ul></nav>"


def section(number: int, comparison: Comparison) -> str:
    """The verdict, the differences, the table and the charts."""
    notes = "".join(f"<li>{text(note)}</li>" for note in wording.notes(comparison))
    warnings = "".join(
        f'<p class="warning">{text(warning)}</p>' for warning in edge_warnings(comparison)
    )
    shown = comparison.cells, comparison.set_aside
    charts = "".join(map(chart_figure, [*all_charts(*shown), *time_charts(*shown)]))
    return f"""<section id="c{number}">
<h2>{text(wording.title(comparison))}</h2>
<p class="verdict">{text(headline(comparison))}</p>
{warnings}
<p class="protocol">{text(wording.opening(comparison))}
{text(wording.common_protocol(comparison.cells))}.</p>
{"".join(map(chart_figure, difference_charts(comparison)))}
{table(comparison)}
<ul class="notes">{notes}</ul>
{charts}
{gallery(comparison)}
</section>
"""


def table(comparison: Comparison) -> str:
    """The table; settings that were not chosen are folded in a second one."""
    columns = wording.columns(comparison)
    first = [row for row in comparison.rows if row.label not in comparison.set_aside]
    others = [row for row in comparison.rows if row.label in comparison.set_aside]
    if not others:
        return table_of(first, columns)
    settings = f"{len(others)} setting{'s' * (len(others) > 1)}"
    return (
        f"{table_of(first, columns)}<details><summary>{settings} not chosen</summary>"
        f"{table_of(others, columns)}</details>"
    )


def table_of(rows: Sequence[ComparisonRow], columns: Sequence[TableColumn]) -> str:
    head = "".join(f'<th scope="col">{text(column.title)}</th>' for column in columns)
    body = "".join(table_row(row, columns) for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def table_row(row: ComparisonRow, columns: Sequence[TableColumn]) -> str:
    """A row; on a phone each number has the title of its column beside it."""
    unfinished = text(wording.unfinished_runs(row.cell))
    remark = f"<small>{unfinished}</small>" if unfinished else ""
    cells = "".join(
        f'<td data-title="{text(column.title)}">{text(column.text(row))}</td>' for column in columns
    )
    return f'<tr><th scope="row">{text(wording.row_label(row))}{remark}</th>{cells}</tr>'


def chart_figure(chart: Chart) -> str:
    description = f"{chart.title}. {chart.caption}"
    size = f' style="height: {chart.height}px"' if chart.height else ""
    return f"""<figure>
<h3>{text(chart.title)}</h3>
<div class="chart" role="img" aria-label="{text(description)}"{size}></div>
<script type="application/json">{as_data(packed(chart))}</script>
<figcaption>{text(chart.caption)}</figcaption>
</figure>
"""


def packed(chart: Chart) -> dict[str, Any]:
    """The chart with every list of epochs once: most traces share theirs."""
    xs: list[Any] = []
    for trace in chart.data:
        if trace["x"] not in xs:
            xs.append(trace["x"])
    data = [trace | {"x": xs.index(trace["x"])} for trace in chart.data]
    return {"xs": xs, "data": data, "layout": chart.layout}


def as_data(value: Any) -> str:
    """JSON in which an HTML parser cannot find the end of the script or the start of another."""
    packed = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return packed.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def gallery(comparison: Comparison) -> str:
    shown = "".join(
        f'<figure><img src="{picture.data_url}" alt="{text(picture.caption)}">'
        f"<figcaption>{text(picture.caption)}</figcaption></figure>"
        for picture in last_pictures(comparison.cells)
    )
    return f'<h3>Pictures</h3><div class="gallery">{shown}</div>' if shown else ""


# --- a run ---------------------------------------------------------------------------------------


def run_details(record: RunRecord) -> str:
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
        f'{record.status}">{text(wording.status(record))}</span></summary><dl>{lines}</dl></details>'
    )


def earlier_starts(environment: Mapping[str, Any]) -> list[Any]:
    """The earlier start times of a run that was interrupted."""
    earlier = environment.get("earlier")
    starts = earlier if isinstance(earlier, list) else []
    return [start.get("started") for start in starts if isinstance(start, dict)]


def described(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = (f"{name} {setting_words(v)}" for name, v in value.items() if v is not None)
        return text(", ".join(parts))
    if isinstance(value, list):
        return text(", ".join(map(setting_words, value)))
    return text(setting_words(value))


def skipped_list(skipped: Sequence[str]) -> str:
    if not skipped:
        return ""
    lines = "".join(f"<li>{text(complaint)}</li>" for complaint in skipped)
    return f"<h3>Not read</h3><ul>{lines}</ul>"

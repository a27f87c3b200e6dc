"""One self-contained HTML page: tables, charts, and where each number comes from.

Whatever comes from a run is text, never markup: it is escaped here, and by matplotlib in its SVG.
As a second guard, the page's content security policy allows no script and loads nothing.
"""

import base64
import html
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from sgdf import __version__
from sgdf_lab.reports import wording
from sgdf_lab.reports.cells import earlier_starts
from sgdf_lab.reports.comparison import (
    Comparison,
    ComparisonRow,
    compare_stage,
    edge_warnings,
)
from sgdf_lab.reports.figures import (
    Chart,
    cell_looks_of,
    charts,
    difference_chart,
    rates_charts,
    shown_cells,
)
from sgdf_lab.reports.labels import setting_words, visible
from sgdf_lab.runs.records import RunRecord, read_planned
from sgdf_lab.support.figures import dark_rules, inline_svg
from sgdf_lab.support.files import explained, open_regular, write_atomically
from sgdf_lab.support.palette import Look
from sgdf_lab.sweeps.plan import Grid

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
DASHES = {"solid": "", "dash": "9 5", "dot": "2 4", "dashdot": "9 4 2 4", "longdash": "15 5",
          "longdashdot": "15 4 2 4"}  # fmt: skip
SIDE = 640  # pixels of a picture at most, as a page has one per cell


def write(
    path: Path,
    records: Sequence[RunRecord],
    comparisons: Sequence[Comparison],
    *,
    title: str,
    skipped: Sequence[str] = (),
) -> None:
    sections = "".join(section(i, comparison) for i, comparison in enumerate(comparisons))
    write_document(
        path,
        title,
        f"""{contents(comparisons)}
{sections}
<section id="runs">
<h2>Runs</h2>
{"".join(map(run_details, records))}
{skipped_list(skipped)}
</section>""",
        runs=len(records),
    )


def write_stage(stage: Grid, out: Path) -> tuple[list[RunRecord], list[Comparison], list[str]]:
    """Compare the runs that a stage of a sweep has, and write its page; what could not be read."""
    records, skipped = read_planned(stage.configs, out)
    comparisons = compare_stage(stage, records, out) if records else []
    if records:
        file = page_of(stage, out)
        write(file, records, comparisons, title=stage.title, skipped=skipped)
    return records, comparisons, skipped


def page_of(stage: Grid, out: Path) -> Path:
    return out / f"{stage.name}.html"


def write_document(path: Path, title: str, body: str, runs: int) -> None:
    """Write a page atomically: a reader sees the old one or the new one."""
    style = files("sgdf_lab.reports").joinpath("assets", "page.css").read_text(encoding="utf-8")
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>{style}{dark_rules()}</style>
</head>
<body>
<main>
<h1>{text(title)}</h1>
{body}
</main>
<footer>Made by sgdf {text(__version__)} on {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
from {runs} run{"s" * (runs != 1)}. The page is self-contained: it loads
nothing.</footer>
</body>
</html>
"""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)


def text(value: object) -> str:
    """Anything from outside, as text of the page."""
    return html.escape(visible(value))


# --- a comparison --------------------------------------------------------------------------------


def contents(comparisons: Sequence[Comparison]) -> str:
    """The titles and verdicts of several comparisons, as links."""
    if len(comparisons) < 2:
        return ""
    links = (
        f'<li><a href="#c{i}">{text(wording.title(comparison))}</a>: '
        f"{text(wording.headline(comparison))}</li>"
        for i, comparison in enumerate(comparisons)
    )
    return f"<nav><ul>{''.join(links)}</ul></nav>"


def section(number: int, comparison: Comparison) -> str:
    """The verdict, the differences, the table and the charts."""
    notes = "".join(f"<li>{text(note)}</li>" for note in wording.notes(comparison))
    warnings = "".join(
        f'<p class="warning">{text(warning)}</p>' for warning in edge_warnings(comparison)
    )
    differences = difference_chart(comparison)
    return f"""<section id="c{number}">
<h2>{text(wording.title(comparison))}</h2>
<p class="verdict">{text(wording.headline(comparison))}</p>
{warnings}
<p class="protocol">{text(wording.opening(comparison))}
{text(wording.common_protocol(comparison.cells))}.</p>
{chart_figure(differences) if differences else ""}
{table(comparison)}
<ul class="notes">{notes}</ul>
{curves(comparison)}
{gallery(comparison)}
</section>
"""


def table(comparison: Comparison) -> str:
    """The table; settings that were not chosen are folded in a second one."""
    first = [row for row in comparison.rows if row.label not in comparison.set_aside]
    others = [row for row in comparison.rows if row.label in comparison.set_aside]
    if not others:
        return table_of(comparison, first)
    settings = f"{len(others)} setting{'s' * (len(others) > 1)}"
    return (
        f"{table_of(comparison, first)}<details><summary>{settings} not chosen</summary>"
        f"{table_of(comparison, others)}</details>"
    )


def table_of(comparison: Comparison, rows: Sequence[ComparisonRow]) -> str:
    titles, cells = wording.cells_of(comparison, rows)
    return html_table(titles, cells, [wording.unfinished_runs(row.cell) for row in rows])


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]], remarks: Sequence[str]) -> str:
    """Rows begin with their label. On a phone each number has the title of its column beside it."""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = ""
    for remark, (label, *values) in zip(remarks, rows, strict=True):
        small = f"<small>{text(remark)}</small>" if remark else ""
        numbers = "".join(
            f'<td data-title="{text(title)}">{text(value)}</td>'
            for title, value in zip(titles, values, strict=True)
        )
        body += f'<tr><th scope="row">{text(label)}{small}</th>{numbers}</tr>'
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def curves(comparison: Comparison) -> str:
    """What was measured over the epochs, below one legend, and by learning rate."""
    drawn = [*charts(comparison)]
    by_rate = [*rates_charts(comparison)]
    if not drawn + by_rate:
        return ""
    entries = "".join(
        legend_entry(label, look) for label, look in cell_looks_of(shown_cells(comparison)).items()
    )
    legend = (
        f'<ul class="legend">{entries}</ul>\n<p class="protocol">Lines are means over the seeds; '
        "the bands reach from the lowest seed to the highest.</p>"
    )
    shown = "".join(map(chart_figure, [*drawn, *by_rate]))
    return f'{legend if drawn else ""}<div class="charts">{shown}</div>'


def legend_entry(label: str, look: Look) -> str:
    line = f"stroke: {look.colour.lower()}; stroke-dasharray: {DASHES[look.dash] or 'none'}"
    return (
        f'<li><svg width="34" height="10"><line x1="1" x2="33" y1="5" y2="5" style="{line}"/></svg>'
        f"{text(label)}</li>"
    )


def chart_figure(chart: Chart) -> str:
    description = text(f"{chart.title}. {chart.caption}".strip())
    caption = f"<figcaption>{text(chart.caption)}</figcaption>" if chart.caption else ""
    return f"""<figure>
<h3>{text(chart.title)}</h3>
<div class="chart" role="img" aria-label="{description}">{inline_svg(chart.figure)}</div>
{caption}
</figure>
"""


def gallery(comparison: Comparison) -> str:
    """The last picture of each cell's first seed, for the cells that have one."""
    shown = ""
    for cell in (cell for cell in comparison.cells if cell.records):
        name, data = last_picture(cell.records[0])
        caption = text(f"{cell.label}: {name}")
        picture = f'<img src="{data}" alt="{caption}"><figcaption>{caption}</figcaption>'
        shown += f"<figure>{picture}</figure>" if data else ""
    return f'<h3>Pictures</h3><div class="gallery">{shown}</div>' if shown else ""


def last_picture(record: RunRecord) -> tuple[str, str]:
    """Name and data; decoded and encoded again, so that nothing but pixels gets through."""
    for path in sorted((record.folder / "pictures").glob("*.png"))[-1:]:
        try:
            with open_regular(path) as png, Image.open(png, formats=("PNG",)) as image:
                small = image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            file = io.BytesIO()
            small.save(file, "jpeg", quality=85)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            break  # a damaged picture loses no result
        encoded = base64.b64encode(file.getvalue()).decode()
        return f"seed {record.config.seed}, {path.name}", f"data:image/jpeg;base64,{encoded}"
    return "", ""


# --- a run ---------------------------------------------------------------------------------------


def run_details(record: RunRecord) -> str:
    environment = record.environment
    facts: dict[str, Any] = {
        "command": environment.get("command"),
        "commit": environment.get("commit"),
        "machine": environment.get("machine"),
        "sgdf": environment.get("sgdf"),
        "started": environment.get("started"),
        "started before": [start.get("started") for start in earlier_starts(record)],
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

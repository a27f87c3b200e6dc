"""One self-contained HTML page: tables, charts, and where each number comes from."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

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
from sgdf_lab.reports.labels import setting_words
from sgdf_lab.runs.records import RunRecord, read_planned
from sgdf_lab.support import document
from sgdf_lab.support.document import html_table, text
from sgdf_lab.support.figures import inline_svg
from sgdf_lab.support.files import open_regular
from sgdf_lab.support.palette import Look
from sgdf_lab.sweeps.plan import Grid, lines_of_search

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
    notes: Sequence[str] = (),
) -> None:
    sections = "".join(section(i, comparison) for i, comparison in enumerate(comparisons))
    write_document(
        path,
        title,
        f"""{contents(comparisons)}
{sections}
{text_list(notes)}
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
        tuned = stage.chosen_from
        notes = lines_of_search(tuned) if tuned else ()
        write(file, records, comparisons, title=stage.title, skipped=skipped, notes=notes)
    return records, comparisons, skipped


def page_of(stage: Grid, out: Path) -> Path:
    return out / f"{stage.name}.html"


def write_document(path: Path, title: str, body: str, runs: int) -> None:
    document.write(path, title, body, f"{runs} run{'s' * (runs != 1)}")


# --- a comparison --------------------------------------------------------------------------------


def contents(comparisons: Sequence[Comparison]) -> str:
    """The titles and verdicts of several comparisons, as links."""
    if len(comparisons) < 2:
        return ""
    return document.contents(
        (f"c{i}", wording.title(comparison), wording.headline(comparison))
        for i, comparison in enumerate(comparisons)
    )


def section(number: int, comparison: Comparison) -> str:
    """The verdict, the differences, the table and the charts."""
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
{text_list(wording.notes(comparison))}
{curves(comparison)}
{gallery(comparison)}
</section>
"""


def text_list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


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

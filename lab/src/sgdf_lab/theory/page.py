"""All statements on one self-contained HTML page."""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from sgdf_lab.theory import figures
from sgdf_lab.theory.result import CONDITION, FAILS, HOLDS, Check, Result

CLASSES = {HOLDS: "holds", CONDITION: "condition", FAILS: "fails"}
RULES = {"paper": "as printed", "condition": "with the condition", "remark": "remark"}


def render_page(results: Sequence[Result], record: dict[str, Any]) -> str:
    """The page; `record` is the content of results.json."""
    counts = Counter(result.verdict for result in results)
    summary = ", ".join(
        f"{counts[verdict]} {verdict.replace('holds', 'hold').replace('does not', 'do not')}"
        for verdict in (HOLDS, CONDITION, FAILS)
        if counts[verdict]
    )
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
its exact value or a simulation. Of {len(results)} statements {escape(summary)}. A measured number
counts as a counterexample only if it differs by more than four standard errors.</p>
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
        f'src="data:image/svg+xml;base64,{base64.b64encode(figures.svg(panel)).decode()}">'
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

"""All statements on one self-contained page."""

import base64
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from sgdf.theory import figures
from sgdf.theory.result import CONDITION, FAILS, HOLDS, Check, Result

CLASSES = {HOLDS: "holds", CONDITION: "condition", FAILS: "fails"}
RULES = {"paper": "as printed", "condition": "with the condition", "remark": "remark"}
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 62rem; margin: 0 auto;
  padding: 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin: 0 0 .3rem; }
section { border-top: 1px solid #ccc; padding: 1.4rem 0 .6rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #e4e4e4;
  vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
td.mark { white-space: nowrap; } tr.counter td { font-weight: 600; } tr.remark td { color: #555; }
.scroll { overflow-x: auto; } .checks td:first-child { min-width: 11rem; }
code { overflow-wrap: anywhere; }
.verdict { display: inline-block; padding: .05rem .5rem; border-radius: .3rem; font-size: .88rem;
  font-weight: 600; border: 1px solid; }
.holds { color: #00543d; background: #e3f4ee; } .condition { color: #6b4a00; background: #fdf1d8; }
.fails { color: #8f3b00; background: #fbe6d9; }
.figures { display: flex; flex-wrap: wrap; gap: .5rem; margin: .6rem 0; }
.figures img { flex: 1 1 20rem; min-width: 0; max-width: 30rem; width: 100%; }
p { margin: .4rem 0; } .label { color: #555; font-size: .88rem; } a { color: #0055a0; }
footer { border-top: 1px solid #ccc; color: #555; font-size: .85rem; padding: .6rem 0; }
@media print { body { max-width: none; font-size: 10.5pt; } section { break-inside: avoid-page; }
  .verdict { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
"""


def build(results: Sequence[Result], record: dict[str, Any]) -> str:
    """The page; `record` is what results.json holds."""
    counts = Counter(result.verdict for result in results)
    summary = ", ".join(
        f"{counts[verdict]} {verdict.replace('holds', 'hold').replace('does not', 'do not')}"
        for verdict in (HOLDS, CONDITION, FAILS)
        if counts[verdict]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>SGDF: the paper's statements, checked</title>
<style>{STYLE}</style>
</head>
<body>
<h1>The paper's statements, checked</h1>
<p>Each statement of “Signal Processing Meets SGD: From Momentum to Filter” as it is printed, beside
its exact value or a simulation. Of {len(results)} statements {escape(summary)}. A measured number
breaks a bound only by more than four standard errors.</p>
<div class="scroll"><table>
<thead><tr><th>statement</th><th>verdict</th></tr></thead>
<tbody>{"".join(summary_row(result) for result in results)}</tbody>
</table></div>
{"".join(section(result) for result in results)}
<footer>{footer(record)}</footer>
</body>
</html>
"""


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
        f"<p><b>Left out:</b> {escape(result.condition)}.</p>"
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
<p><b>Claim:</b> {escape(result.claim)}</p>
<p><b>Assumed:</b> {escape(result.assumptions)}.</p>
{condition}
<div class="figures">{images}</div>
<p>{escape(result.explanation)}</p>
<div class="scroll checks"><table>
<thead><tr><th>check</th><th class="number">printed</th><th class="number">measured</th><th></th>
</tr></thead>
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
        f'<tr class="{kind}"><td>{escape(check.what)}</td>'
        f'<td class="number">{relation} {check.printed:.4g}</td>'
        f'<td class="number">{check.measured:.4g}{error}</td><td class="mark">{mark}</td></tr>\n'
    )


def footer(record: dict[str, Any]) -> str:
    machine = record["machine"]
    return escape(
        f"{record['command']} · commit {record['commit']} · {machine['device']}, "
        f"Python {machine['python']}, NumPy {machine['numpy']} · {record['seconds']} s"
    )

"""Summaries, figures and tables of the map of filters and of the contest, as far as they go.

    python benchmarks/filter_map_page.py

For every plan of `benchmarks/filter_map.py` whose runs are all in results/evidence this writes the
summary.json beside them, then the figures docs/figures/map-*.svg and the tables of docs/map.md and
docs/map-contest.md. It trains nothing. What is not complete is named on the page and compared with
nothing.
"""

import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.reports.evidence import Summary
from sgdf_lab.reports.evidence.summary import summarize
from sgdf_lab.reports.evidence.tables import p_words
from sgdf_lab.reports.wording import NOTHING
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.figures import STYLE, write_svg
from sgdf_lab.support.files import write_atomically, write_json
from sgdf_lab.support.pages import blocks_of, filled, markdown_table
from sgdf_lab.sweeps.plan import sweep_from_table

sys.path.insert(0, str(Path(__file__).parent))
import filter_map as plans

PAGE = plans.ROOT / "docs" / "map.md"
PAGES = (PAGE, PAGE.with_name("map-contest.md"))
FIGURES = plans.ROOT / "docs" / "figures"
DARK, PALE = "#1b1b1b", "#fafafa"  # words on a coloured cell, in both colour schemes
EMPTY = "#d9d9d9"
COLUMN_NAMES = {
    "sgd": "none (SGD)",
    "adam": "Adam's division",
    "eigen": "in the eigenbasis",
    "orthogonal": "orthogonalise",
    "eigen-orthogonal": "eigenbasis, then\northogonalise",
}
#: The rows that are the defaults of FilterAdamW, FilterSOAP and FilterMuon, by column.
DEFAULTS = {"adam": "2K", **dict.fromkeys(("eigen", "orthogonal", "eigen-orthogonal"),
                                          "two averages, constant 0.1")}  # fmt: skip
STEP_NAMES = {
    "sgd": "SGD",
    "adam": "Adam's division",
    "eigen": "Adam in the eigenbasis",
    "orthogonal": "orthogonalisation",
    "eigen-orthogonal": "eigenbasis and orthogonalisation",
}
RIVALS = ("AdamW", "NAdamW", "Muon", "SOAP")
EIGENBASIS = "FilterMuon, eigenbasis"
OURS = ("FilterAdamW", "FilterMuon", EIGENBASIS, "FilterSOAP")
STEP_TIMES = plans.ROOT / "results" / "bench-step-matrices-cuda.json"
PASSES = 9  # a length up to this is in passes over the images
COUNTED = ("contest-gpt-encyclopedia", "contest-gpt-books", "contest-lstm-encyclopedia",
           "contest-vit-cifar10", "contest-cnn-cifar10")  # fmt: skip

Json = dict[str, Any]


def main() -> None:
    made, found = summaries()
    for name, summary in found.items():
        write_json(plans.RESULTS / name / "summary.json", summary, indent=1)
    curve = adamw_curve(found)
    for length in ("short", "long", "images"):
        columns = columns_of(found, length)
        if columns:
            write_svg(heat_map(columns, curve, length), FIGURES / f"map-{length}")
    contents = blocks(made, found)
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        own = {name: contents[name] for name in blocks_of(page)}
        write_atomically(path, filled(page, own))


# --- numbers --------------------------------------------------------------------------------------


def summaries() -> tuple[dict[str, Json | None], dict[str, Summary]]:
    """All plans, and the summaries of those that are complete."""
    made = plans.plans()
    return made, {n: summary for n, plan in made.items() if (summary := summary_of(n, plan))}


def summary_of(name: str, plan: Json | None) -> Summary | None:
    """None while runs of the plan are missing."""
    if plan is None or "trials" not in plan or not plans.has_ended(name, plan):
        return None
    records, complaints = read_runs([plans.record_of(name)])
    if complaints:
        raise SystemExit("\n".join(map(str, complaints)))
    sweep = sweep_from_table(name, plan)
    references: Sequence[str] = ()
    if name.startswith("contest"):
        labels = labels_of(sweep, records)
        references = [label for label, cell in zip(labels, plan["cells"], strict=True)
                      if rival_of(cell) or label == "FilterMuon"]  # fmt: skip
    elif len(plan["cells"]) > 1:
        labels = dict(zip(rows_of(plan), labels_of(sweep, records), strict=True))
        default = DEFAULTS.get(name.partition("-")[2].partition("-")[2])
        references = [labels[row] for row in ("EMA", default) if row in labels]
    command = f"python benchmarks/{Path(__file__).name}"
    return summarize(sweep, records, references, command)


def short_name(contestant: Json) -> str:
    """What a contestant is called where the settings of its cell would name it."""
    settings = (contestant.get("chosen") or {}).get("settings", {})
    if contestant["optimizer"] == "filter-soap":
        return "SOAP, kernels as matrices" if settings.get("slow_weight") == 0 else "FilterSOAP"
    return str(contestant["label"])


def of_all_tasks(contestant: Json) -> str:
    """Its name in a table over all tasks, where SOAP with kernels as matrices is SOAP."""
    return short_name(contestant).partition(", kernels")[0]


def labels_of(sweep: Any, records: Sequence[Any]) -> list[str]:
    return [contestant["label"] for contestant in summarize(sweep, records)["contestants"]]


def rival_of(cell: Json) -> str:
    """Which rival a contestant is, if it is one."""
    if cell["optimizer"] == "filter-soap" and cell.get("slow_weight") == 0:
        return "SOAP"  # on images
    return {"adamw": "AdamW", "nadamw": "NAdamW", "muon": "Muon", "soap": "SOAP"}.get(
        cell["optimizer"], ""
    )


def rows_of(plan: Json) -> list[str]:
    """The rows of a column, in the order of its cells."""
    wanted = [{k: v for k, v in cell.items() if k != "optimizer"} for cell in plan["cells"]]
    by_settings = {repr(sorted(own.items())): row for row, own in plans.FILTERS.items()}
    return [by_settings[repr(sorted(own.items()))] for own in wanted]


def columns_of(found: Mapping[str, Summary], length: str) -> dict[str, dict[str, Json]]:
    """By column and row: the mean of the metric, the difference to the average, what was chosen."""
    made = plans.plans()
    columns = {}
    for column in plans.COLUMNS:
        name = f"map-{length}-{column}"
        if name in found:
            columns[column] = cells_of(found[name], rows_of(made[name]))
    return columns


def cells_of(summary: Summary, rows: Sequence[str]) -> dict[str, Json]:
    comparison, *others = summary["comparisons"]
    against, default = (
        {row["contestant"]: row for c in part for row in c["rows"]}
        for part in ([comparison], others)
    )
    soon = {row["contestant"]: row["length"] for row in comparison["reached"]}
    return {
        row: {"final": contestant["final"], "difference": against.get(contestant["label"]),
              "from the default": default.get(contestant["label"]),
              "reached": soon.get(contestant["label"]), "edges": edges_of(contestant),
              "settings": (contestant["chosen"] or {}).get("settings")}
        for row, contestant in zip(rows, summary["contestants"], strict=True)
    }  # fmt: skip


def edges_of(contestant: Json) -> list[str]:
    return [str(edge) for edge in (contestant["chosen"] or {}).get("edges", ())]


def adamw_curve(found: Mapping[str, Summary]) -> list[tuple[int, float]]:
    """Steps and test loss of AdamW, tuned at each length."""
    curve = []
    for name, summary in found.items():
        if name.startswith("map-adamw-") and summary["contestants"][0]["final"]:
            steps = int(name.removeprefix("map-adamw-"))
            curve.append((steps, summary["contestants"][0]["final"]["mean"]))
    return sorted(curve)


def steps_needed(curve: Sequence[tuple[int, float]], loss: float) -> float | None:
    """How many steps a loss takes, between two lengths by the logarithm of the steps.

    >>> round(steps_needed([(100, 3.0), (400, 2.0)], 2.5))
    200
    >>> steps_needed([(100, 3.0), (400, 2.0)], 1.9) is None
    True
    """
    for (a, worse), (b, better) in itertools.pairwise(curve):
        if worse > better and better <= loss <= worse:
            part = (worse - loss) / (worse - better)
            return math.exp(math.log(a) + part * (math.log(b) - math.log(a)))
    return None


# --- the figure -----------------------------------------------------------------------------------


def heat_map(
    columns: Mapping[str, Mapping[str, Json]], curve: Sequence[tuple[int, float]], length: str
) -> Figure:
    """Each cell: the test metric, and the difference to the average of its column."""
    rows = [row for row in plans.FILTERS if any(row in cells for cells in columns.values())]
    with rc_context(STYLE):
        size = (1.9 + 1.45 * len(columns), 1.1 + 0.52 * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        for x, cells in enumerate(columns.values()):
            scale = max([abs(d) for row in cells if (d := lead(cells[row], length))], default=1.0)
            for y, row in enumerate(rows):
                draw_cell(axes, x, y, cells.get(row), scale, curve, length)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), [COLUMN_NAMES[c] for c in columns], fontsize=8.5)
        axes.set_yticks(range(len(rows)), rows)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    return figure


def lead(cell: Json | None, length: str) -> float | None:
    """How much better than the average of the column: above 0 is better."""
    if cell is None or cell["difference"] is None or cell["difference"]["mean"] is None:
        return None
    mean: float = cell["difference"]["mean"]
    return mean if length == "images" else -mean


def draw_cell(
    axes: Axes,
    x: int,
    y: int,
    cell: Json | None,
    scale: float,
    curve: Sequence[tuple[int, float]],
    length: str,
) -> None:
    if cell is None or cell["final"] is None:
        if cell is None:  # not among the rows of this column
            axes.text(x, y, NOTHING, ha="center", va="center", fontsize=8)
            return
        axes.add_patch(rectangle(x, y, EMPTY))
        axes.text(x, y, "diverged", ha="center", va="center", fontsize=8, color=DARK)
        return
    ahead = lead(cell, length)
    part = 0.5 if ahead is None else 0.5 + 0.5 * max(-1.0, min(1.0, ahead / scale))
    red, green, blue, _ = colormaps["PuOr"](1 - part)
    colour = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
    ink = DARK if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else PALE
    axes.add_patch(rectangle(x, y, colour))
    sure = ahead is None or bool(cell["difference"]["verdict"])
    digits = 2 if length == "images" else 4
    axes.text(x, y - 0.16, f"{cell['final']['mean']:.{digits}f}", ha="center", va="center",
              fontsize=8.5, color=ink, fontweight="bold" if sure else "normal")  # fmt: skip
    axes.text(x, y + 0.2, detail(cell, ahead, curve, length), ha="center", va="center",
              fontsize=7, color=ink)  # fmt: skip


def rectangle(x: int, y: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none")


def detail(cell: Json, ahead: float | None, curve: Sequence[tuple[int, float]], length: str) -> str:
    """The second line of a cell: how much better, and AdamW's steps to the same loss."""
    digits = 2 if length == "images" else 3
    words = "the average" if ahead is None else f"{ahead:+.{digits}f}".replace("-", "−")
    return words if length == "images" or not curve else f"{words} · {needed(curve, cell)}"


def needed(curve: Sequence[tuple[int, float]], cell: Json) -> str:
    """AdamW's steps to the loss of a cell; "> 1800" where its longest run does not reach it."""
    steps = steps_needed(curve, cell["final"]["mean"])
    if steps is not None:
        return f"{steps:.0f}"
    (first, worst), (last, best) = curve[0], curve[-1]
    return f"< {first}" if cell["final"]["mean"] > worst else f"> {last}" if best else ""


# --- the page -------------------------------------------------------------------------------------


def blocks(made: Mapping[str, Json | None], found: Mapping[str, Summary]) -> dict[str, str]:
    return {
        "complete": complete(made, found),
        "figures": "\n\n".join(map_parts(found)) or "No column is complete yet.",
        "AdamW by steps": adamw_table(found),
        "chosen rates": rates_table(found),
        "contest, all tasks": contest_means(found),
        "contests": "\n\n".join(contest_tables(found)) or "No task of the contest is complete yet.",
        "the aim": aim(found),
        "another draw": another_draw(found),
        "kernels": kernels(found),
        "checks": checks(found),
        "price": price(),
        "with or without a basis": with_or_without(found),
        "defaults": defaults(found),
        "Muon's rates": muon_tables(),
    }


def complete(made: Mapping[str, Json | None], found: Mapping[str, Summary]) -> str:
    grids = [n for n, p in made.items() if p and "trials" not in p and plans.has_ended(n, p)]
    ready = sum(found[n]["runs"] for n in found) + sum(plans.runs_of(made[n] or {}) for n in grids)
    missing = [name for name in made if name not in found and name not in grids]
    words = (
        f"Complete: {len(found) + len(grids)} of {len(made)} plans, {ready:,} runs"
        f"{', by ' * bool(found)}{joined(found, 'machines')}"
        f"{'; commits ' * bool(found)}{joined(found, 'commits', 7)}."
    )
    return words + (
        f" Not complete, and compared with nothing: {', '.join(f'`{name}`' for name in missing)}."
        if missing
        else ""
    )


def joined(found: Mapping[str, Summary], key: str, length: int | None = None) -> str:
    return ", ".join(dict.fromkeys(word[:length] for s in found.values() for word in s[key]))


def map_parts(found: Mapping[str, Summary]) -> Iterator[str]:
    """For each length the figure, the rates at an edge, and the numbers, folded."""
    titles = {
        "short": "600 steps: test loss in nats",
        "long": "1800 steps: test loss in nats",
        "images": "Vision transformer on CIFAR-10: test accuracy in %",
    }
    curve = adamw_curve(found)
    for length, title in titles.items():
        if columns := columns_of(found, length):
            yield f"### {title}\n\n![{title}, by filter and step](figures/map-{length}.svg)"
            yield edge_line({
                f"{row} before {STEP_NAMES[column]}": cell["edges"]
                for column, cells in columns.items() for row, cell in cells.items()
            })  # fmt: skip
            yield (
                '<details markdown="1"><summary>The numbers of this figure, and the steps saved'
                f"</summary>\n\n{map_table(columns, curve, length)}\n\n</details>"
            )


def map_table(
    columns: Mapping[str, Mapping[str, Json]], curve: Sequence[tuple[int, float]], length: str
) -> str:
    """A line for each cell, the best of a column first."""
    images = length == "images"
    whole, sign = plans.STEPS.get(length, 2), -1 if images else 1
    rows = []
    for column, cells in columns.items():
        for row in sorted(cells, key=lambda r: middle(cells[r], sign)):
            cell = cells[row]
            digits = 2 if images else 4
            is_average = cell["difference"] is None
            words = ["–", "–"] if is_average else difference_words(cell["difference"], digits)
            soon = f"{cell['reached']:.0f} of {whole}" if cell["reached"] else "not reached"
            own = f"{cell['final']['mean']:.{digits}f}" if cell["final"] else "diverged"
            of_adamw = [] if images else [needed(curve, cell) if cell["final"] else NOTHING]
            rows.append([STEP_NAMES[column], row, own, *words,
                         f"{whole} of {whole}" if is_average else soon, *of_adamw])  # fmt: skip
    unit = "passes" if images else "steps"
    header = ["step", "filter", "test accuracy" if images else "test loss", "minus the average",
              "p", f"{unit} to the average's end", *[f"AdamW's {unit}"] * (not images)]  # fmt: skip
    return markdown_table(header, rows)


def middle(cell: Json, sign: int) -> float:
    """The mean of the seeds, less is better with this sign; who diverged is last."""
    return sign * cell["final"]["mean"] if cell["final"] else math.inf


def difference_words(row: Json, digits: int) -> list[str]:
    """A difference, in bold if it is clear, and its p value with the luck of the choices."""
    if row["mean"] is None:
        return [NOTHING, NOTHING]
    words = f"{row['mean']:+.{digits}f}".replace("-", "−")
    p = NOTHING if row["p_verdict"] is None else p_words(row["p_verdict"])
    return [f"**{words}**" if row["verdict"] else words, p]


def edge_line(edges: Mapping[str, Sequence[str]]) -> str:
    """What was chosen at an edge of what was tried: a value beyond it may be better."""
    found = [f"{name} ({', '.join(own)})" for name, own in edges.items() if own]
    return f"Chosen at an edge of what was tried: {'; '.join(found) or 'nothing'}."


def adamw_table(found: Mapping[str, Summary]) -> str:
    curve = adamw_curve(found)
    if not curve:
        return "Not complete yet."
    return markdown_table(["steps of AdamW", "test loss"], [[f"{s}", f"{v:.4f}"] for s, v in curve])


def rates_table(found: Mapping[str, Summary]) -> str:
    columns = columns_of(found, "short")
    if not columns:
        return "Not complete yet."
    rows = [
        [row, *(rate_words(cells.get(row)) for cells in columns.values())] for row in plans.FILTERS
    ]
    return markdown_table(["filter", *(COLUMN_NAMES[c].replace("\n", " ") for c in columns)], rows)


def rate_words(cell: Json | None) -> str:
    return f"{cell['settings']['lr']:g}" if cell and cell["settings"] else NOTHING


def contest_tables(found: Mapping[str, Summary]) -> Iterator[str]:
    for name, summary in found.items():
        if name.startswith("contest"):
            edges = edge_line({short_name(c): edges_of(c) for c in summary["contestants"]})
            title = title_of(summary)
            yield (
                f'<details markdown="1"><summary>{title[0].upper()}{title[1:]}</summary>\n\n'
                f"{contest(summary)}\n\n{edges}\n\n</details>"
            )


def contest_means(found: Mapping[str, Summary]) -> str:
    """All contestants on the tasks that count; the best mean of each in bold."""
    tasks = [found[name] for name in COUNTED if name in found]
    if not tasks:
        return "No task of the contest is complete yet."
    rows: dict[str, list[str]] = {}
    for task in tasks:
        sign = 1 if task["metric"]["lower_is_better"] else -1
        means = {of_all_tasks(c): middle(c, sign) for c in task["contestants"]}
        for name, mean in means.items():
            words = (
                f"{sign * mean:.{task['metric']['digits']}f}" if math.isfinite(mean) else "diverged"
            )
            best = mean == min(means.values())
            rows.setdefault(name, []).append(f"**{words}**" if best else words)
    return markdown_table(["", *map(title_of, tasks)], [[n, *cells] for n, cells in rows.items()])


def contest(summary: Summary) -> str:
    """Best first: the metric, the differences to the rivals, the steps to AdamW's end."""
    metric = summary["metric"]
    sign = 1 if metric["lower_is_better"] else -1
    order = sorted(summary["contestants"], key=lambda c: middle(c, sign))
    names = {c["label"]: short_name(c) for c in summary["contestants"]}
    unit = "steps" if summary["length"] > PASSES else "passes"
    against = [f"minus {names[c['reference']]}" for c in of_rivals(summary)]
    header = ["", metric["words"], *against, f"{unit} to AdamW's end"]
    return markdown_table(header, [contest_row(c, summary) for c in order])


def contest_row(contestant: Json, summary: Summary) -> list[str]:
    digits = summary["metric"]["digits"]
    label, final = contestant["label"], contestant["final"]
    spread = "" if not final or final["std"] is None else f" ± {final['std']:.{digits}f}"
    return [
        short_name(contestant),
        f"{final['mean']:.{digits}f}{spread}" if final else "diverged",
        *(difference(comparison, label, digits) for comparison in of_rivals(summary)),
        reached(summary["comparisons"][0], label, summary["length"]),
    ]


def of_rivals(summary: Summary) -> list[Json]:
    """The comparisons with rivals; there is one more, with FilterMuon."""
    return [c for c in summary["comparisons"] if c["reference"] != "FilterMuon"]


def difference(comparison: Json, label: str, digits: int) -> str:
    if label == comparison["reference"]:
        return NOTHING
    row = next(row for row in comparison["rows"] if row["contestant"] == label)
    return difference_words(row, digits)[0]


def reached(comparison: Json, label: str, length: int) -> str:
    row = next((row for row in comparison["reached"] if row["contestant"] == label), None)
    if row is None or row["length"] is None:
        return NOTHING
    return f"{row['length']:.0f} of {length}"


def aim(found: Mapping[str, Summary]) -> str:
    """On how many of the counted tasks each of ours is ahead of every rival."""
    counted = {name: found[name] for name in COUNTED if name in found}
    if not counted:
        return "None of the five tasks is complete yet."
    lines = []
    for name in OURS:
        ahead = [title_of(summary) for summary in counted.values() if ahead_of_all(summary, name)]
        where = f": {'; '.join(ahead)}" if ahead else ""
        count = f"{len(ahead)} of {len(counted)} tasks"
        lines.append(f"- **{name}**: clearly ahead of all four rivals on {count}{where}.")
    return "\n".join(lines)


def ahead_of_all(summary: Summary, name: str) -> bool:
    labels = [c["label"] for c in summary["contestants"] if short_name(c) == name]
    rows = [row for c in of_rivals(summary) for row in c["rows"] if row["contestant"] in labels]
    return len(rows) == len(RIVALS) and all(row["verdict"] == "ahead" for row in rows)


def title_of(summary: Summary) -> str:
    return str(summary["title"]).removeprefix("The contest: ")


def another_draw(found: Mapping[str, Summary]) -> str:
    """Where one of ours is ahead of all rivals: how often other trials would have undone it."""
    rows, header = [], ["", "task", *RIVALS]
    for name in OURS:
        for task in (found[n] for n in COUNTED if n in found and ahead_of_all(found[n], name)):
            sign = 1 if task["metric"]["lower_is_better"] else -1
            values = {
                of_all_tasks(c): [math.inf if t["value"] is None else sign * t["value"]
                                  for t in c["trials"]]
                for c in task["contestants"]
            }  # fmt: skip
            pairs = [(values[name], values[rival]) for rival in RIVALS]
            parts = ((100 * not_better(*pair), dealt_again(*pair)) for pair in pairs)
            cells = (f"{share:.1f} %; {p_words(p)}" for share, p in parts)
            rows.append([name, title_of(task), *cells])
    return markdown_table(header, rows) if rows else "Nothing is ahead of all rivals yet."


def not_better(own: Sequence[float], rival: Sequence[float]) -> float:
    """How often the best of a draw of one's trials is not below the best of a draw of the other's.

    A draw has as many trials as there are, with replacement; the share is exact.

    >>> not_better([1.0, 4.0], [2.0, 3.0])
    0.25
    """

    def beyond(values: Sequence[float], bound: float) -> float:
        return math.pow(sum(value > bound for value in values) / len(values), len(values))

    ranked = sorted(set(own))
    share = [1.0, *(beyond(own, value) for value in ranked)]  # of draws whose best is beyond it
    parts = zip(ranked, itertools.pairwise(share), strict=True)
    return math.fsum((more - less) * (1 - beyond(rival, v)) for v, (more, less) in parts)


def dealt_again(own: Sequence[float], rival: Sequence[float]) -> float:
    """The p value of how far apart the bests are, if all trials were dealt to the two at random.

    They are as far apart where all of one's that are better than the other's best stay together.

    >>> dealt_again([1.0, 2.0, 5.0], [3.0, 4.0, 6.0])
    0.4
    """
    better = sum(value < min(rival) for value in own)
    together = ((len(own) - i) / (len(own) + len(rival) - i) for i in range(1, better))
    return math.prod(together)


def with_or_without(found: Mapping[str, Summary]) -> str:
    """FilterMuon in the eigenbasis beside FilterMuon."""
    rows = []
    for summary in found.values():
        for comparison in summary["comparisons"]:
            if comparison["reference"] == "FilterMuon":
                row = next(r for r in comparison["rows"] if r["contestant"] == EIGENBASIS)
                rows.append([title_of(summary), summary["metric"]["words"],
                             *difference_words(row, summary["metric"]["digits"])])  # fmt: skip
    if not rows:
        return "Not complete yet."
    return markdown_table(["task", "", "eigenbasis minus none", "p"], rows)


def defaults(found: Mapping[str, Summary]) -> str:
    """The columns in which another row has a better mean than the default, and that row."""
    rows = []
    for length, words in (("short", "600 steps"), ("long", "1800 steps"), ("images", "images")):
        sign = -1 if length == "images" else 1
        digits = 2 if length == "images" else 4
        for column, cells in columns_of(found, length).items():
            default = DEFAULTS.get(column)
            if default in cells:
                best = min(cells, key=lambda r, cells=cells, sign=sign: middle(cells[r], sign))
                if told := cells[best]["from the default"]:
                    apart = difference_words(told, digits)
                    rows.append([f"{STEP_NAMES[column]}, {words}", default, best, *apart])
    if not rows:
        return "Each default has the best mean of its column."
    return markdown_table(["", "default", "best mean", "minus the default", "p"], rows)


def kernels(found: Mapping[str, Summary]) -> str:
    """What of the leads on the vision transformer is what is stepped, and with which rate."""
    contest = found.get("contest-vit-cifar10")
    tuned = {step: found.get(f"map-images-{step}-tune") for step in ("adam", "orthogonal")}
    if not (contest and all(tuned.values())):
        return "Not complete yet."
    own = {short_name(c): c["final"] for c in contest["contestants"]}
    adam, orthogonal = (summary["contestants"][0]["final"] for summary in tuned.values() if summary)
    named = {
        "AdamW": own["AdamW"],
        "Adam, the rate of embeddings, norms and biases tuned too": adam,
        "Muon": own["Muon"],
        "orthogonalisation with an average of 0.9, kernels as matrices": orthogonal,
        "SOAP, kernels as matrices": own["SOAP, kernels as matrices"],
        EIGENBASIS: own[EIGENBASIS],
    }
    rows = [[name, f"{final['mean']:.2f}", f"{final['n']}"] for name, final in named.items()]
    table = markdown_table(["vision transformer, CIFAR-10", "test accuracy", "seeds"], rows)
    best = own[EIGENBASIS]["mean"]
    over, part = best - own["Muon"]["mean"], orthogonal["mean"] - own["Muon"]["mean"]
    above, rate = best - own["AdamW"]["mean"], adam["mean"] - own["AdamW"]["mean"]
    return (
        f"{table}\n\nOf the {over:.1f} points over Muon, about {part:.1f} come from stepping "
        f"kernels as matrices, and about {over - part:.1f} remain. Of the {above:.1f} points over "
        f"AdamW, about {rate:.1f} come from a learning rate of its own for the other parameters."
    )


def price() -> str:
    """Time and memory of a step of those whom the aim is about, on matrices of a GPT."""
    measured = json.loads(STEP_TIMES.read_text(encoding="utf-8"))
    of = measured["lists"]["gpt-124m-matrices"]
    names = {"muon-loop": "Muon (torch)", "filtermuon": "FilterMuon",
             "filtermuon-eigenbasis": EIGENBASIS, "soap-loop": "SOAP (pytorch_optimizer)",
             "filtersoap": "FilterSOAP"}  # fmt: skip
    by_name = {row["name"]: row for row in of["rows"]}
    rows = [
        [words, f"{statistics.fmean(by_name[name]['timings']['ms']):.3g}",
         f"{by_name[name]['state_bytes']:.1f}"]
        for name, words in names.items()
    ]  # fmt: skip
    title = f"{of['title']}, {measured['machine']['device']}"
    return markdown_table([title, "ms a step", "bytes of state a parameter"], rows)


def checks(found: Mapping[str, Summary]) -> str:
    """Muon's rule with kernels as matrices, beside the contestants of the same task."""
    rows = []
    for name, summary in found.items():
        if name.startswith("check"):
            of = found.get(f"contest-{name.split('-')[1]}-cifar10")
            cells = [c for c in of["contestants"] if c["final"]] if of else []
            (own,) = summary["contestants"]
            by_name = {short_name(c): c for c in cells} | {"Muon, kernels as matrices": own}
            chosen = ("Muon", "Muon, kernels as matrices", *OURS[1:])
            rows.append([title_of(summary).rpartition(": ")[2],
                         *(f"{by_name[n]['final']['mean']:.2f}" for n in chosen)])  # fmt: skip
    if not rows:
        return "Not complete yet."
    return markdown_table(["task", "Muon", "Muon, kernels as matrices", *OURS[1:]], rows)


def muon_tables() -> str:
    """Mean test losses at the rate that is best for Muon, and seeds that are below it."""
    rows, edges = [], {}
    for name, plan in plans.plans().items():
        if not name.startswith("muon") or not plans.has_ended(name, plan):
            continue
        losses = losses_of(name)
        rates = sorted({rate for _, rate in losses})
        best = min(rates, key=lambda rate: statistics.fmean(losses["muon", rate].values()))
        edge = {rates[0]: "smallest lr", rates[-1]: "largest lr"}.get(best)
        edges[f"Muon, {title_of(plan).partition(', ')[2]}"] = [edge] if edge else []
        muon = losses["muon", best]
        cells = [f"{statistics.fmean(muon.values()):.4f} (at {best:g})"]
        for form in ("filter-muon", "filter-muon-eigen"):
            own = losses[form, best]
            below = sum(own[seed] < muon[seed] for seed in muon)
            lead = statistics.fmean(muon[seed] - own[seed] for seed in muon)
            least = min(statistics.fmean(losses[form, rate].values()) for rate in rates)
            words = f"{statistics.fmean(own.values()):.4f} ({lead:+.4f}, {below} of {len(muon)}; "
            cells.append(f"{words}at its own best {least:.4f})".replace("-", "−"))
        rows.append([title_of(plan).partition(", ")[2], *cells])
    if not rows:
        return "Not complete yet."
    header = ["", "Muon, best rate", "FilterMuon, same rate", "in the eigenbasis, same rate"]
    return f"{markdown_table(header, rows)}\n\n{edge_line(edges)}"


def losses_of(name: str) -> dict[tuple[str, float], dict[int, float]]:
    """The test losses of a plan without trials: by optimizer and rate, then by seed."""
    found: dict[tuple[str, float], dict[int, float]] = {}
    records, _ = read_runs([plans.record_of(name)])
    for run in records:
        key = (run.config.optimizer, float(run.config.settings["lr"]))
        found.setdefault(key, {})[run.config.seed] = run.metrics[-1]["test_loss"]
    return found


if __name__ == "__main__":
    main()

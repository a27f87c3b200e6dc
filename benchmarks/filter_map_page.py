"""Summaries, figures and tables of the map of filters and of the contest, as far as they go.

    python benchmarks/filter_map_page.py

For every plan of `benchmarks/filter_map.py` whose runs are all in results/evidence this writes the
summary.json beside them, then the figures docs/figures/map-*.svg and the tables of docs/map.md. It
trains nothing. What is not complete is named on the page and compared with nothing.
"""

import itertools
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
from sgdf_lab.reports.wording import NOTHING
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.figures import STYLE, write_svg
from sgdf_lab.support.files import write_atomically, write_json
from sgdf_lab.support.pages import filled, markdown_table
from sgdf_lab.sweeps.plan import sweep_from_table

sys.path.insert(0, str(Path(__file__).parent))
import filter_map as plans

PAGE = plans.ROOT / "docs" / "map.md"
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
RIVALS = ("AdamW", "NAdamW", "Muon", "SOAP")
OURS = ("FilterAdamW", "FilterMuon", "FilterMuon, eigenbasis", "FilterSOAP")
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
    page = PAGE.read_text(encoding="utf-8")
    write_atomically(PAGE, filled(page, blocks(made, found)))


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
                      if rival_of(cell)]  # fmt: skip
    elif len(plan["cells"]) > 1:
        references = [labels_of(sweep, records)[rows_of(plan).index("EMA")]]
    command = f"python benchmarks/{Path(__file__).name}"
    return summarize(sweep, records, references, command)


def short_name(contestant: Json) -> str:
    """What a contestant is called where the settings of its cell would name it."""
    settings = (contestant.get("chosen") or {}).get("settings", {})
    if contestant["optimizer"] == "filter-soap":
        return "SOAP, kernels as matrices" if settings.get("slow_weight") == 0 else "FilterSOAP"
    return str(contestant["label"])


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
    """By column and row: the mean of the metric, and the difference to the average."""
    made = plans.plans()
    columns = {}
    for column in plans.COLUMNS:
        name = f"map-{length}-{column}"
        if name in found:
            columns[column] = cells_of(found[name], rows_of(made[name]))
    return columns


def cells_of(summary: Summary, rows: Sequence[str]) -> dict[str, Json]:
    comparison = summary["comparisons"][0]
    against = {row["contestant"]: row for row in comparison["rows"]}
    return {
        row: {"final": contestant["final"], "difference": against.get(contestant["label"]),
              "settings": (contestant["chosen"] or {}).get("settings")}
        for row, contestant in zip(rows, summary["contestants"], strict=True)
    }  # fmt: skip


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
        "figures": "\n\n".join(figure_lines(found)) or "No column is complete yet.",
        "AdamW by steps": adamw_table(found),
        "chosen rates": rates_table(found),
        "contests": "\n\n".join(contest_tables(found)) or "No task of the contest is complete yet.",
        "the aim": aim(found),
        "checks": checks(found),
        "Muon's rates": muon_tables(),
    }


def complete(made: Mapping[str, Json | None], found: Mapping[str, Summary]) -> str:
    grids = [n for n, p in made.items() if p and "trials" not in p and plans.has_ended(n, p)]
    ready = sum(found[n]["runs"] for n in found) + sum(plans.runs_of(made[n] or {}) for n in grids)
    missing = [name for name in made if name not in found and name not in grids]
    words = f"Complete: {len(found) + len(grids)} of {len(made)} plans, {ready:,} runs."
    return words + (
        f" Not complete, and compared with nothing: {', '.join(f'`{name}`' for name in missing)}."
        if missing
        else ""
    )


def figure_lines(found: Mapping[str, Summary]) -> Iterator[str]:
    titles = {
        "short": "600 steps: test loss in nats",
        "long": "1800 steps: test loss in nats",
        "images": "Vision transformer on CIFAR-10: test accuracy in %",
    }
    for length, title in titles.items():
        if columns_of(found, length):
            yield f"### {title}\n\n![{title}, by filter and step](figures/map-{length}.svg)"


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
            yield f"### {summary['title'].removeprefix('The contest: ')}\n\n{contest(summary)}"


def contest(summary: Summary) -> str:
    """Best first: the metric, the differences to the rivals, the steps to AdamW's end."""
    metric = summary["metric"]
    sign = 1 if metric["lower_is_better"] else -1
    order = sorted(
        summary["contestants"],
        key=lambda c: sign * c["final"]["mean"] if c["final"] else math.inf,
    )
    names = {c["label"]: short_name(c) for c in summary["contestants"]}
    unit = "steps" if summary["length"] > PASSES else "passes"
    against = [f"minus {names[comparison['reference']]}" for comparison in summary["comparisons"]]
    header = ["", metric["words"], *against, f"{unit} to AdamW's end"]
    return markdown_table(header, [contest_row(c, summary) for c in order])


def contest_row(contestant: Json, summary: Summary) -> list[str]:
    digits = summary["metric"]["digits"]
    label, final = contestant["label"], contestant["final"]
    spread = "" if not final or final["std"] is None else f" ± {final['std']:.{digits}f}"
    return [
        short_name(contestant),
        f"{final['mean']:.{digits}f}{spread}" if final else "diverged",
        *(difference(comparison, label, digits) for comparison in summary["comparisons"]),
        reached(summary["comparisons"][0], label, summary["length"]),
    ]


def difference(comparison: Json, label: str, digits: int) -> str:
    if label == comparison["reference"]:
        return NOTHING
    row = next(row for row in comparison["rows"] if row["contestant"] == label)
    if row["mean"] is None:
        return NOTHING
    words = f"{row['mean']:+.{digits}f}".replace("-", "−")
    return f"**{words}**" if row["verdict"] else words


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
    rows = [row for c in summary["comparisons"] for row in c["rows"] if row["contestant"] in labels]
    return len(rows) == len(RIVALS) and all(row["verdict"] == "ahead" for row in rows)


def title_of(summary: Summary) -> str:
    return str(summary["title"]).removeprefix("The contest: ")


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
    rows = []
    for name, plan in plans.plans().items():
        if not name.startswith("muon") or not plans.has_ended(name, plan):
            continue
        losses = losses_of(name)
        rates = sorted({rate for _, rate in losses})
        best = min(rates, key=lambda rate: statistics.fmean(losses["muon", rate].values()))
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
    return markdown_table(header, rows)


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

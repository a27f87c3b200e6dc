"""A summary as tables, in a terminal or as markdown: results, speed, tuning."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgdf_lab.reports import tables as shared
from sgdf_lab.reports.evidence import Summary
from sgdf_lab.reports.labels import setting_words
from sgdf_lab.reports.numbers import Spread
from sgdf_lab.reports.tables import Table, as_markdown
from sgdf_lab.reports.wording import NOTHING, duration, interval, signed, spread

if TYPE_CHECKING:
    from rich.console import Console

LEAST_P = 1e-4  # smaller p values are shown as that
Json = Mapping[str, Any]


def show(console: "Console", summary: Summary) -> None:
    """Print all tables, and what is missing, lost or at an edge."""
    shared.show(console, tables(summary))
    for note in summary["notes"]:
        console.print(note, markup=False, highlight=False)


def markdown(summary: Summary) -> str:
    """The tables for a page, which is wide enough for all differences beside the results."""
    return "\n\n".join(markdown_parts(summary)) + "\n"


def markdown_parts(summary: Summary) -> list[str]:
    """Results with their differences, the other tables, the notes."""
    first, *others = tables(summary)
    differences = [table for table in others if table.name == "differences"]
    rest = [table for table in others if table.name != "differences"]
    notes = "\n".join(f"- {note}" for note in summary["notes"])
    parts = [as_markdown(table) for table in (side_by_side(first, differences), *rest)]
    return [*parts, notes] if notes else parts


def side_by_side(first: Table, others: Sequence[Table]) -> Table:
    """The columns of tables with the same labels in one."""
    columns = [*first.columns, *(column for table in others for column in table.columns)]
    rows = [
        [*row, *(cell for table in others for cell in table.rows[i][1:])]
        for i, row in enumerate(first.rows)
    ]
    caption = " ".join([first.caption, *(table.caption for table in others)]).strip()
    return Table(first.name, first.title, tuple(columns), tuple(map(tuple, rows)), caption)


def tables(summary: Summary) -> Iterator[Table]:
    yield results(summary)
    yield from differences(summary)
    if any(comparison["reached"] for comparison in summary["comparisons"]):
        yield speed(summary)
    if any(row.get("same_settings") for c in summary["comparisons"] for row in c["rows"]):
        yield same_settings(summary)
    yield tuning(summary)
    if summary["planned"]["finalists"]:
        yield choice(summary)


def ranked(summary: Summary) -> list[Json]:
    """The contestants, best final value first; those without one last."""
    sign = 1 if summary["metric"]["lower_is_better"] else -1
    return sorted(
        summary["contestants"],
        key=lambda c: (c["final"] is None, sign * c["final"]["mean"] if c["final"] else 0),
    )


# --- results -------------------------------------------------------------------------------------


def results(summary: Summary) -> Table:
    metric, seeds = summary["metric"], summary["planned"]["seeds"]
    rows = [
        (contestant["label"], final_words(contestant, metric["digits"], len(seeds)))
        for contestant in ranked(summary)
    ]
    better = "lower" if metric["lower_is_better"] else "higher"
    unit = f" in {metric['unit']}" if metric["unit"] else ""
    caption = (
        f"{metric['words'].capitalize()}{unit} after the last {summary['unit']}, {better} is "
        f"better: mean ± standard deviation (seeds).{choice_words(summary)}"
    )
    title = f"{summary['title']}: {len(seeds)} seeds of the best of {summary['planned']['trials']}"
    return Table("results", f"{title} trials", (metric["words"],), tuple(rows), caption)


def choice_words(summary: Summary) -> str:
    planned = summary["planned"]
    if not planned["finalists"]:
        return ""
    return (
        f" Of the {planned['finalists']} best trials, the one with the best mean over "
        f"{len(planned['choice_seeds'])} other seeds was chosen."
    )


def differences(summary: Summary) -> Iterator[Table]:
    """A table for each reference; the last one says how to read them."""
    metric, last = summary["metric"], len(summary["comparisons"])
    caption = (
        "Differences are taken seed by seed: their mean with its 95 % interval. The p values: of "
        "the paired t test, which compares the two settings; and with the luck of the choice, "
        "which compares the optimizers: the share of pairs of equally good ones, tuned alike, that "
        "come out as far apart. Both after Holm's correction over all comparisons with one "
        f"reference; ahead or behind: the second below {summary['ahead']:g}."
    )
    for number, comparison in enumerate(summary["comparisons"], start=1):
        reference = comparison["reference"]
        rows = [
            (c["label"], *difference_words(comparison, c["label"], metric["digits"]))
            for c in ranked(summary)
        ]
        yield Table(
            "differences",
            f"{metric['words'].capitalize()}, against {reference}",
            (f"minus {reference}", "p of the seeds", "p with the choice"),
            tuple(rows),
            caption * (number == last),
        )


def final_words(contestant: Json, digits: int, planned: int) -> str:
    final = contestant["final"]
    if final is None:
        return NOTHING
    lost = any(run["status"] in ("diverged", "failed") for run in contestant["seeds"].values())
    count = str(final["n"]) if final["n"] == planned else f"{final['n']} of {planned}"
    return f"{spread(Spread(**final), digits)} ({count}){'*' * lost}"


def difference_words(comparison: Json, label: str, digits: int) -> tuple[str, str, str]:
    """The difference with its interval, and both p values, the second with a verdict."""
    if comparison["reference"] == label:
        return "reference", "", ""
    row = next(row for row in comparison["rows"] if row["contestant"] == label)
    if row["n"] == 0:
        return NOTHING, "", ""
    mark, verdict = "*" * bool(row["lost"]), f", {row['verdict']}" * bool(row["verdict"])
    if row["p"] is None:
        why = "one seed" if row["n"] == 1 else "all alike"
        return signed(row["mean"], digits) + mark, why, ""
    words = interval((row["mean"], row["low"], row["high"]), digits)
    return words + mark, p_words(row["p_holm"]), p_words(row["p_verdict"]) + verdict


def p_words(p: float) -> str:
    """
    >>> p_words(0.03456), p_words(1.0), p_words(1e-9)
    ('0.035', '1', '<0.0001')
    """
    return f"<{LEAST_P:.4f}" if p < LEAST_P else f"{p:.2g}"


# --- speed ---------------------------------------------------------------------------------------


def speed(summary: Summary) -> Table:
    usable = [comparison for comparison in summary["comparisons"] if comparison["reached"]]
    digits = summary["metric"]["digits"]
    with_steps = any(c["step_ms"] for c in summary["contestants"])
    columns = [f"to {c['reference']}'s end, {c['target']:.{digits}f}" for c in usable]
    columns += ["a step, alone"] if with_steps else ["a run"]
    rows = []
    for contestant in ranked(summary):
        label = contestant["label"]
        cells = [reach_words(comparison, label, summary["unit"]) for comparison in usable]
        rows.append((label, *cells, time_words(contestant, with_steps)))
    caption = (
        f"The {summary['unit']}s until the {summary['validation']['words']} that the reference has "
        f"at its end, and their ratio to its {summary['length']} {summary['unit']}s: median over "
        f"the seeds (how many reached it, if not all). It is measured every {every(summary)}. "
    )
    if with_steps:
        caption += "Times are steps times the time of a step, measured alone on the device."
    else:
        caption += "A run: wall time; runs that shared a device slowed each other down."
    return Table("speed", "How soon", tuple(columns), tuple(rows), caption)


def every(summary: Summary) -> str:
    """
    >>> every({"interval": 1, "unit": "epoch"}), every({"interval": 50, "unit": "step"})
    ('epoch', '50 steps')
    """
    unit = str(summary["unit"])
    return unit if summary["interval"] == 1 else f"{summary['interval']} {unit}s"


def reach_words(comparison: Json, label: str, unit: str) -> str:
    reached = next(row for row in comparison["reached"] if row["contestant"] == label)
    if comparison["reference"] == label:
        return "reference"
    if reached["n"] == 0:
        return NOTHING
    count = f" ({reached['reached']} of {reached['n']})"
    if reached["length"] is None:
        return f"not reached{count if reached['reached'] else ''}"
    length = f"{reached['length']:g} {unit}s, {reached['ratio']:.2f}×"
    if reached["time_ratio"] is not None:
        length += f", time {reached['time_ratio']:.2f}×"
    return length if reached["reached"] == reached["n"] else length + count


def time_words(contestant: Json, with_steps: bool) -> str:
    step, seconds = contestant["step_ms"], contestant["seconds"]
    if with_steps:
        return NOTHING if step is None else f"{step:.3g} ms"
    return NOTHING if seconds is None else duration(seconds)


# --- the same settings ---------------------------------------------------------------------------


def same_settings(summary: Summary) -> Table:
    """A line for each pair: at how many settings of the trials one is better, by how much."""
    order = [contestant["label"] for contestant in ranked(summary)]
    rows = [
        (row["contestant"], comparison["reference"], same_words(row, summary["metric"]["digits"]))
        for comparison in summary["comparisons"]
        for row in sorted(comparison["rows"], key=lambda row: order.index(row["contestant"]))
        if row.get("same_settings")
    ]
    caption = (
        f"The trials at which both had the same settings, by their final "
        f"{summary['validation']['words']}: how many are better, the median difference, and the p "
        "value of the sign test, not corrected. One seed, and nothing is chosen: this is what "
        "happens if only the optimizer is exchanged."
    )
    return Table("same", "At the same settings", ("than", "better"), tuple(rows), caption)


def same_words(row: Json | None, digits: int) -> str:
    """
    >>> row = {"better": 7, "worse": 1, "median": -0.25, "p": 0.0703125}
    >>> same_words({"same_settings": row}, 2), same_words(None, 2)
    ('7 of 8, −0.25, p 0.07', '–')
    """
    same = (row or {}).get("same_settings")
    if not same:
        return NOTHING
    parts = [f"{same['better']} of {same['better'] + same['worse']}"]
    parts += [f"{same['equal']} equal"] if same.get("equal") else []
    parts += [signed(same["median"], digits)] if same["median"] is not None else []
    parts += [f"p {p_words(same['p'])}"] if same["p"] is not None else []
    return ", ".join(parts)


# --- tuning --------------------------------------------------------------------------------------


def tuning(summary: Summary) -> Table:
    trials, digits = summary["planned"]["trials"], summary["metric"]["digits"]
    counts = shown_counts(trials)
    columns = [f"best of {k}" for k in counts]
    columns += ["near own best", "near best of all", "chosen lr", "lost"]
    rows = []
    for contestant in ranked(summary):
        best, near = contestant["expected_best"], contestant["within_margin"]
        cells = [f"{best[k - 1]:.{digits}f}" if k <= len(best) else NOTHING for k in counts]
        cells += [share_words(near[name]) for name in ("of_own_best", "of_best_of_all")]
        lost = sum(trial["status"] in ("diverged", "failed") for trial in contestant["trials"])
        cells += [chosen_rate(contestant), str(lost)]
        rows.append((contestant["label"], *cells))
    worst = summary["worst_finished"]
    counted = "" if worst is None else f" ({worst:.{digits}f})"
    unit = "point" if summary["metric"]["unit"] == "%" else summary["metric"]["unit"]
    caption = (
        f"Final {summary['validation']['words']}: the expected best of k trials, drawn without "
        "replacement; one that diverged or failed (lost) counts as the worst finished trial of "
        f"anyone{counted}. Near: the share of trials within {summary['margin']:g} {unit} of the "
        "best. An arrow: the chosen learning rate is the smallest or largest that was tried."
    )
    title = f"How much tuning: {trials} trials of each"
    return Table("tuning", title, tuple(columns), tuple(rows), caption)


def choice(summary: Summary) -> Table:
    """How the best trial did with other seeds, beside the finalist that was chosen."""
    digits, planned = summary["metric"]["digits"], summary["planned"]
    rows = []
    for contestant in ranked(summary):
        finals, chosen = contestant["finals"], contestant["chosen"]
        if not finals:
            rows.append((contestant["label"], *[NOTHING] * 4))
            continue
        trial = next(t for t in contestant["trials"] if t["settings"] == finals[0]["settings"])
        place = [final["settings"] for final in finals].index(chosen["settings"])
        values = (trial["value"], finals[0]["mean"], finals[place]["mean"])
        shown = [NOTHING if value is None else f"{value:.{digits}f}" for value in values]
        rows.append((contestant["label"], *shown, str(place + 1)))
    seeds = len(planned["choice_seeds"])
    caption = (
        f"Final {summary['validation']['words']}. The best trial of {planned['trials']} is partly "
        f"a lucky one: with {seeds} other seeds the same setting is often worse. Place: of the "
        "chosen setting among the trials."
    )
    columns = ("best trial", "with other seeds", "chosen, with these seeds", "place")
    return Table("choice", "The choice", columns, tuple(rows), caption)


def shown_counts(trials: int) -> list[int]:
    """
    >>> shown_counts(8), shown_counts(6), shown_counts(1)
    ([1, 2, 4, 8], [1, 2, 4, 6], [1])
    """
    return sorted({2**i for i in range(trials.bit_length()) if 2**i <= trials} | {trials})


def share_words(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.0f} %"


def chosen_rate(contestant: Json) -> str:
    chosen = contestant["chosen"]
    if chosen is None:
        return NOTHING
    arrow = "↑" * ("largest lr" in chosen["edges"]) + "↓" * ("smallest lr" in chosen["edges"])
    return f"{setting_words(chosen['settings']['lr'])}{arrow}"

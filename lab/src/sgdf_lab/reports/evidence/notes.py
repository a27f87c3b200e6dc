"""What a reader of a summary has to know: what is missing, what was lost, how it was computed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sgdf_lab.reports.evidence import Summary
from sgdf_lab.reports.numbers import SEEN

NAMED = 4  # contestants in a sentence; more are counted
PARTS = ("trials", "finals", "seeds")
TO_GO = ("missing", "unfinished")
LOST = ("diverged", "failed")


def sentences(summary: Summary) -> list[str]:
    worst = summary["worst_finished"]
    counted = "" if worst is None else f", and counted as the worst finished one, {worst:.4g},"
    without = [c["label"] for c in summary["contestants"] if c["chosen"] is None]
    others = {"": n} if (n := summary["other_runs"]) else {}
    found = [
        about(
            counts(summary, "trials", TO_GO),
            "Incomplete: {n} trial{s} to go ({who}); a choice may still change.",
        ),
        unequal_trials(summary),
        about(
            counts(summary, "trials", LOST),
            f"{{n}} trial{{s}} diverged or failed ({{who}}): never chosen{counted} in the "
            "expected best.",
        ),
        about(
            counts(summary, "finals", TO_GO),
            "Incomplete: {n} run{s} of finalists to go ({who}); a choice may still change.",
        ),
        about(
            counts(summary, "finals", LOST),
            "{n} run{s} of finalists diverged or failed ({who}): such a setting is chosen only if "
            "every finalist lost one.",
        ),
        about(counts(summary, "seeds", TO_GO), "Incomplete: {n} seed{s} to go ({who})."),
        f"Without a finished trial, and so without a setting: {joined(without)}." * bool(without),
        about(
            counts(summary, "seeds", LOST),
            "{n} seed{s} diverged or failed ({who}): means, differences and p values marked * are "
            "over the other seeds only, and too good.",
        ),
        at_edges(summary),
        seen(summary),
        about(others, "Left out: {n} run{s} of another plan."),  # or of an earlier choice
    ]
    return [sentence for sentence in found if sentence]


def about(numbers: Mapping[str, int], sentence: str) -> str:
    """A sentence with these numbers, by contestant; empty without any.

    >>> about({"AdamW": 1, "SGDF, K": 2}, "{n} seed{s} diverged ({who}).")
    '3 seeds diverged (AdamW: 1; SGDF, K: 2).'
    """
    n = sum(numbers.values())
    who = joined([f"{label}: {count}" for label, count in numbers.items()])
    return sentence.format(n=n, s="s" * (n != 1), who=who) if numbers else ""


def unequal_trials(summary: Summary) -> str:
    """A comparison is fair only if everybody had as many trials."""
    ended = {
        c["label"]: sum(t["status"] in ("finished", *LOST) for t in c["trials"])
        for c in summary["contestants"]
    }
    most = max(ended.values())
    fewer = {label: n for label, n in ended.items() if n < most}
    return about(fewer, f"Not equal: some had {most} trials, others fewer ({{who}}).")


def at_edges(summary: Summary) -> str:
    """Learning rates at an edge; with several settings, one of the others is there by chance."""
    edges = [
        f"{contestant['label']} ({edge})"
        for contestant in summary["contestants"]
        for edge in (contestant["chosen"] or {}).get("edges", ())
        if edge.endswith(" lr")
    ]
    words = f"The chosen learning rate is at an edge of what was tried: {joined(edges)}."
    return words if edges else ""


def seen(summary: Summary) -> str:
    is_seen = summary["metric"]["key"] == summary["validation"]["key"]
    has_result = any(contestant["final"] for contestant in summary["contestants"])
    return SEEN.format(summary["metric"]["words"]) if is_seen and has_result else ""


def counts(summary: Summary, part: str, statuses: Sequence[str]) -> dict[str, int]:
    """How many trials, finals or seeds have one of the statuses, by contestant; without zeros."""
    found: Counter[str] = Counter()
    for contestant in summary["contestants"]:
        runs = runs_of(contestant, part)
        found[contestant["label"]] += sum(run["status"] in statuses for run in runs)
    return {label: n for label, n in found.items() if n}


def runs_of(contestant: Mapping[str, Any], part: str) -> Iterable[Mapping[str, Any]]:
    if part == "trials":
        return contestant["trials"]  # type: ignore[no-any-return]
    if part == "finals":
        return [run for final in contestant["finals"] for run in final["seeds"].values()]
    return contestant[part].values()  # type: ignore[no-any-return]


def joined(words: Sequence[str]) -> str:
    more = f"; and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return "; ".join(words[:NAMED]) + more

"""What a reader of a summary has to know: what is missing, what was lost, how it was computed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sgdf_lab.reports.evidence import Summary

NAMED = 4  # contestants in a sentence; more are counted


def sentences(summary: Summary) -> list[str]:
    return [
        *missing_trials(summary),
        *unequal_trials(summary),
        *lost_trials(summary),
        *missing_finals(summary),
        *lost_finals(summary),
        *missing_seeds(summary),
        *lost_seeds(summary),
        *at_edges(summary),
        *other_runs(summary),
    ]


def missing_trials(summary: Summary) -> list[str]:
    missing = counts(summary, "trials", ("missing", "unfinished"))
    if not missing:
        return []
    return [
        f"Incomplete: {count(missing, 'trial')} to go ({listed(missing)}); a choice may still "
        "change."
    ]


def unequal_trials(summary: Summary) -> list[str]:
    """A comparison is fair only if everybody had as many trials."""
    ended = {
        c["label"]: sum(t["status"] in ("finished", "diverged", "failed") for t in c["trials"])
        for c in summary["contestants"]
    }
    most = max(ended.values())
    fewer = {label: n for label, n in ended.items() if n < most}
    if not fewer:
        return []
    return [f"Not equal: some had {most} trials, others fewer ({listed(fewer)})."]


def lost_trials(summary: Summary) -> list[str]:
    lost = counts(summary, "trials", ("diverged", "failed"))
    if not lost:
        return []
    worst = summary["worst_finished"]
    counted = "" if worst is None else f", and counted as the worst finished one, {worst:.4g},"
    return [
        f"{count(lost, 'trial')} diverged or failed ({listed(lost)}): never chosen{counted} in the "
        "expected best."
    ]


def missing_finals(summary: Summary) -> list[str]:
    missing = counts(summary, "finals", ("missing", "unfinished"))
    if not missing:
        return []
    return [
        f"Incomplete: {count(missing, 'run')} of finalists to go ({listed(missing)}); a choice may "
        "still change."
    ]


def lost_finals(summary: Summary) -> list[str]:
    lost = counts(summary, "finals", ("diverged", "failed"))
    if not lost:
        return []
    return [
        f"{count(lost, 'run')} of finalists diverged or failed ({listed(lost)}): such a setting is "
        "chosen only if every finalist lost one."
    ]


def missing_seeds(summary: Summary) -> list[str]:
    missing = counts(summary, "seeds", ("missing", "unfinished"))
    without = [c["label"] for c in summary["contestants"] if c["chosen"] is None]
    found = []
    if missing:
        found.append(f"Incomplete: {count(missing, 'seed')} to go ({listed(missing)}).")
    if without:
        found.append(f"Without a finished trial, and so without a setting: {joined(without)}.")
    return found


def lost_seeds(summary: Summary) -> list[str]:
    lost = counts(summary, "seeds", ("diverged", "failed"))
    if not lost:
        return []
    return [
        f"{count(lost, 'seed')} diverged or failed ({listed(lost)}): means, differences and "
        "p values marked * are over the other seeds only, and too good."
    ]


def at_edges(summary: Summary) -> list[str]:
    """Learning rates at an edge; with several settings, one of the others is there by chance."""
    edges = [
        f"{contestant['label']} ({edge})"
        for contestant in summary["contestants"]
        for edge in (contestant["chosen"] or {}).get("edges", ())
        if edge.endswith(" lr")
    ]
    if not edges:
        return []
    return [f"The chosen learning rate is at an edge of what was tried: {joined(edges)}."]


def other_runs(summary: Summary) -> list[str]:
    """Runs of an earlier choice, or of other options than the sweep had."""
    others = {"": n} if (n := summary["other_runs"]) else {}
    return [f"Left out: {count(others, 'run')} of another plan."] if others else []


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


def count(numbers: Mapping[str, int], word: str) -> str:
    """
    >>> count({"AdamW": 1}, "seed"), count({"AdamW": 1, "Lion": 2}, "seed")
    ('1 seed', '3 seeds')
    """
    n = sum(numbers.values())
    return f"{n} {word}{'s' * (n != 1)}"


def listed(numbers: Mapping[str, int]) -> str:
    """
    >>> listed({"AdamW": 2, "SGDF, K": 1})
    'AdamW: 2; SGDF, K: 1'
    """
    return joined([f"{label}: {n}" for label, n in numbers.items()])


def joined(words: Sequence[str]) -> str:
    more = f"; and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return "; ".join(words[:NAMED]) + more

"""All numbers of a tuned sweep as plain JSON: `summary.json`."""

import dataclasses
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sgdf_lab.reports.cells import earlier_starts
from sgdf_lab.reports.choice import choice_of
from sgdf_lab.reports.comparison import REFERENCES as REFERENCES
from sgdf_lab.reports.evidence import VERSION, Summary
from sgdf_lab.reports.labels import contestant_names, visible
from sgdf_lab.reports.numbers import (
    SEEN,
    SIGNIFICANCE,
    compare,
    expected_best,
    median_or_never,
    outcome,
    result_metric,
    share_within,
    sign_test,
    spread,
    validation_words,
    with_verdicts,
)
from sgdf_lab.runs.config import frozen
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.support.errors import unknown
from sgdf_lab.sweeps.contestants import (
    Contestant,
    PlannedRun,
    contestants_of,
    edges_of,
)
from sgdf_lab.sweeps.plan import Tuned, validation_key
from sgdf_lab.tasks import Metric

MARGINS = {"language": 0.02}  # nats per token
MARGIN = 1.0  # of others: a point of accuracy
NAMED = 4  # contestants in a sentence; more are counted
PARTS = ("trials", "finals", "seeds")
TO_GO = ("missing", "unfinished")
LOST = ("diverged", "failed")
METRIC = ("key", "words", "unit", "lower_is_better", "digits")

Json = dict[str, Any]


def summarize(
    sweep: Tuned,
    records: Sequence[RunRecord],
    references: Sequence[str] = (),
    command: str = "",
    step_times: Sequence[Json] = (),
) -> Summary:
    """The summary of a sweep with trials, and of as many of its runs as there are.

    Args:
        sweep: the plan.
        records: the runs; others than those of the plan are only counted.
        references: names of optimizers or of contestants to compare with; default: `REFERENCES`.
        command: that made the summary.
        step_times: rows of benchmarks/step_times.py, for the times to a target: those of the runs
            themselves are of runs side by side.
    """
    contestants = [
        dataclasses.replace(contestant, label=label)
        for contestant, label in zip(
            contestants_of(sweep, records), contestant_names(sweep.trials), strict=True
        )
    ]
    config = sweep.configs[0]
    task = config.task_definition
    last = [run.record for c in contestants for run in c.seeds if run.record]
    metric = result_metric(task, [record for record in last if record.finished])
    worst, best = extremes(contestants, task.metric)
    margin = MARGINS.get(task.kind, MARGIN)
    alone = {c.label: step_time(c, sweep.name, step_times) for c in contestants}
    used = [run for c in contestants for run in c.runs if run.record]
    summary: Summary = {
        "version": VERSION,
        "name": visible(sweep.name),
        "title": sweep.title,
        "task": config.task,
        "model": config.model,
        "length": config.total,
        "unit": config.unit,
        "interval": config.interval,
        "planned": {
            "trials": len(sweep.trials[0]),
            "finalists": sweep.finalists,
            "choice_seeds": [*sweep.choice_seeds],
            "seeds": [*sweep.seeds],
        },
        "metric": {name: getattr(metric, name) for name in METRIC},
        "validation": {"key": validation_key(config), "words": validation_words(task.metric)},
        "margin": margin,
        "ahead": SIGNIFICANCE,
        "worst_finished": worst,
        "contestants": [
            {
                **contestant_values(c, metric, worst=worst, best=best, margin=margin),
                "step_ms": alone[c.label],
            }
            for c in contestants
        ],
        "comparisons": [
            comparison(reference, contestants, metric, alone)
            for reference in find_references(contestants, references)
        ],
        "other_runs": len(records) - len(used),
        "command": visible(command),
        **provenance([run.record for run in used if run.record]),
    }
    return {**summary, "notes": notes(summary)}


# --- metrics -------------------------------------------------------------------------------------


def extremes(
    contestants: Iterable[Contestant], metric: Metric
) -> tuple[float | None, float | None]:
    """The worst of all finished trials, which a lost one counts as, whoever's; and the best."""
    values = [v for c in contestants for trial in c.trials if (v := trial.validation) is not None]
    worst, best = (max, min) if metric.lower_is_better else (min, max)
    return (worst(values), best(values)) if values else (None, None)


# --- a contestant --------------------------------------------------------------------------------


def contestant_values(
    contestant: Contestant,
    metric: Metric,
    *,
    worst: float | None,
    best: float | None,
    margin: float,
) -> Json:
    lower = metric.lower_is_better
    ended, chosen = contestant.ended, contestant.chosen
    values = [trial.validation for trial in ended]
    counted = [worst if value is None else value for value in values]
    known = [value for value in counted if value is not None]
    final = spread(outcome(contestant.seeds, metric).values.values())
    finished = [value for value in values if value is not None]
    own = metric.best(finished) if finished else None
    return {
        "label": contestant.label,
        "optimizer": contestant.optimizer,
        "trials": [
            {"status": t.status, "value": t.validation, "settings": dict(t.config.settings)}
            for t in contestant.trials
        ],
        "finals": [
            {
                "settings": dict(final.trial.config.settings),
                "mean": final.mean,
                "seeds": {
                    str(run.config.seed): {"status": run.status, "value": run.validation}
                    for run in final.runs
                },
            }
            for final in contestant.finals
            if final.runs
        ],
        "chosen": {
            "settings": dict(chosen.config.settings),
            "value": chosen.validation,
            "edges": edges_of(contestant),
        }
        if chosen
        else None,
        "seeds": {
            str(run.config.seed): {"status": run.status, "value": run.final(metric.key)}
            for run in contestant.seeds
        },
        "final": dataclasses.asdict(final) if final else None,
        "expected_best": expected_best(known, lower_is_better=lower),
        "within_margin": {
            name: share_within(values, goal, margin, lower_is_better=lower)
            if goal is not None and values
            else None
            for name, goal in (("of_own_best", own), ("of_best_of_all", best))
        },
        "seconds": seconds_of(contestant),
    }


def seconds_of(contestant: Contestant) -> float | None:
    """The median wall time of its finished seeds."""
    times = [
        seconds
        for run in contestant.seeds
        if run.record and run.record.finished
        if (seconds := run.record.seconds_to(run.record.reached)) is not None
    ]
    return median_or_never(times)


def step_time(contestant: Contestant, name: str, rows: Sequence[Json]) -> float | None:
    """The median milliseconds of a step, of the row of its first trial."""
    first = contestant.trials[0].config
    settings = json.loads(json.dumps(first.settings))
    own = {"file": name, "optimizer": first.optimizer, "settings": settings, "batch": first.batch}
    for row in rows:
        if all(row.get(key, value) == value for key, value in own.items()):  # older: no batch
            return float(statistics.median(row["ms"]))
    return None


# --- comparisons ---------------------------------------------------------------------------------


def find_references(contestants: Sequence[Contestant], names: Sequence[str]) -> list[Contestant]:
    """By the name of the optimizer or the label; of several with one name, the first."""
    by_name: dict[str, Contestant] = {}
    for contestant in contestants:
        by_name.setdefault(contestant.optimizer, contestant)
        by_name.setdefault(contestant.label, contestant)
    for name in names:
        if name not in by_name:
            raise unknown("contestant", name, by_name)
    wanted = names or [name for name in REFERENCES if name in by_name]
    return list({id(by_name[name]): by_name[name] for name in wanted}.values())


def comparison(
    reference: Contestant,
    contestants: Sequence[Contestant],
    metric: Metric,
    alone: Mapping[str, float | None],
) -> Json:
    """Everybody against one: paired differences, and the time to where it ends."""
    rivals = [contestant for contestant in contestants if contestant is not reference]
    own, *others = (outcome(c.seeds, metric, choice_of(c)) for c in (reference, *rivals))
    found = with_verdicts([compare(other, own) for other in others], metric)
    rows = [
        {
            "contestant": rival.label,
            **difference.as_json(),
            "same_settings": same_settings(rival, reference),
        }
        for rival, difference in zip(rivals, found, strict=True)
    ]
    ends = [v for run in reference.seeds if (v := run.validation) is not None]
    target = statistics.mean(ends) if ends else None
    return {
        "reference": reference.label,
        "rows": rows,
        "target": target,
        "reached": []
        if target is None
        else [
            reach(c, reference, target, alone[c.label], alone[reference.label]) for c in contestants
        ],
    }


def same_settings(rival: Contestant, reference: Contestant) -> Json | None:
    """The trials of both at the same settings: what happens if only the optimizer is exchanged.

    A trial that diverged or failed is worse than one that finished. None without such pairs.
    """
    better, worse, differences = 0, 0, []
    for ours, theirs in zip(rival.trials, reference.trials, strict=True):
        own, given = ours.config.settings, theirs.config.settings
        if not all(frozen(own.get(name)) == frozen(value) for name, value in given.items()):
            continue
        if not (ours.has_ended and theirs.has_ended) or (ours.is_lost and theirs.is_lost):
            continue
        value, other = ours.validation, theirs.validation
        if value is None or other is None:
            better, worse = better + (other is None), worse + (value is None)
            continue
        differences.append(value - other)
        lower = ours.config.task_definition.metric.lower_is_better
        better += value != other and (value < other) == lower
        worse += value != other and (value < other) != lower
    if not better + worse + len(differences):
        return None
    return {
        "better": better,
        "worse": worse,
        "equal": len(differences) - sum(difference != 0 for difference in differences),
        "median": statistics.median(differences) if differences else None,
        "p": sign_test(better, worse),
    }


def reach(
    contestant: Contestant,
    reference: Contestant,
    target: float,
    step: float | None,
    reference_step: float | None,
) -> Json:
    """When its seeds first had the validation value that the reference ends at.

    A seed that never had it, or diverged, counts as never; medians are over all seeds that ended.
    The ratios are to a whole run of the reference; that in time is known if the times of a `step`
    of both are, measured on an idle device.
    """
    ended = [run for run in contestant.seeds if run.has_ended]
    places = [first_at(run, target) for run in ended]
    times = [
        run.record.seconds_to(place) if run.record and place else None
        for run, place in zip(ended, places, strict=True)
    ]
    length, seconds, whole = median_or_never(places), median_or_never(times), seconds_of(reference)
    ratio = None if length is None else length / reference.trials[0].config.total
    return {
        "contestant": contestant.label,
        "n": len(ended),
        "reached": sum(place is not None for place in places),
        "length": length,
        "ratio": ratio,
        "seconds": seconds,
        "seconds_ratio": seconds / whole if seconds is not None and whole else None,
        "time_ratio": ratio * step / reference_step
        if step and reference_step and ratio is not None
        else None,
    }


def first_at(run: PlannedRun, target: float) -> int | None:
    """Where its validation metric first reached the target; never, of a run that was lost."""
    if run.record is None or run.is_lost:
        return None
    return run.record.first_at(target, validation_key(run.config))


# --- where the runs come from --------------------------------------------------------------------


def provenance(records: Sequence[RunRecord]) -> Json:
    """The commits, machines and data of all starts of these runs."""
    starts = [
        start
        for record in records
        for start in (record.environment, *earlier_starts(record))
        if start
    ]
    machines = [start["machine"] for start in starts if isinstance(start.get("machine"), dict)]
    hours = math.fsum(s for record in records for s in record.seconds.values()) / 3600
    return {
        "runs": len(records),
        "run_hours": round(hours, 3),
        "commits": different(start.get("commit") for start in starts),
        "machines": different(visible(machine_words(machine)) for machine in machines),
        "data": different(start.get("data") for start in starts),
    }


def different(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values if value})


def machine_words(machine: Mapping[str, Any]) -> str:
    cuda = f", CUDA {machine['cuda']}" if machine.get("cuda") else ""
    return f"{machine.get('device', 'unknown')}, torch {machine.get('torch', 'unknown')}{cuda}"


# --- what a reader has to know -------------------------------------------------------------------


def notes(summary: Summary) -> list[str]:
    """What is missing, what was lost, how it was computed."""
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

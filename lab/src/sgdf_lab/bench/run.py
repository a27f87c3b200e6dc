"""Measure, show and record the cost of a step (`sgdf bench step`)."""

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sgdf.kernels import changes
from sgdf_lab.bench import contestants
from sgdf_lab.bench.measure import measure_parameter_list
from sgdf_lab.bench.memory import GIB, free_bytes, groups_that_fit, needed_bytes, too_large
from sgdf_lab.bench.screens import PlainScreen, open_screen, show_parameter_list
from sgdf_lab.bench.shapes import LISTS, default_lists
from sgdf_lab.bench.targets import TARGETS, compared_by_targets
from sgdf_lab.bench.timing import Budget
from sgdf_lab.support import provenance
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.files import write_atomically

REPEATS = 30
SECONDS = 2.0
WITH_TARGETS = "targets"  # in `only`: all contestants that the list's targets compare


def step(
    *,
    device: str | None = None,
    lists: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    total: float | None = None,
    memory: float | None = None,
    out: Path | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Measure the time and memory of one step of each optimizer, show tables, write a JSON record.

    Args:
        device: "cpu" or "cuda" (default: cuda if there is one).
        lists: names of `sgdf_lab.bench.shapes.LISTS` (default: those meant for the device).
        only: names of `sgdf_lab.bench.contestants.CONTESTANTS`, or "targets" for those that the
            targets of a list compare (default: all).
        repeats: timings of each contestant.
        seconds: limit for each contestant.
        total: approximate limit for all together, in seconds: it lowers `seconds`.
        memory: limit in GiB (default: what is free).
        out: the file of the record (default: results/bench-step-DEVICE.json), which is written
            after each list.
        command: recorded as the command that was typed.

    Returns:
        The record.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA device here: --device cpu")
    names = list(dict.fromkeys(lists or default_lists(device)))
    check_names("list", names, LISTS)
    check_names("contestant", only or (), selectable())
    limit = math.inf if memory is None else memory * GIB
    budget = Budget(device, repeats, seconds, min(limit, free_bytes(device)))
    target = out or Path("results") / f"bench-step-{device}.json"
    start = time.perf_counter()
    record, screen = new_record(budget, command), open_screen()
    record["settings"]["total"] = total
    screen.line(f"Measuring {', '.join(names)} on {device}; the record goes to {target}")
    for number, name in enumerate(names):
        if total is not None:
            left = total - (time.perf_counter() - start)
            rows = sum(len(select(one, only, device)) for one in names[number:])
            budget = replace(budget, seconds=min(seconds, max(left, 0) / max(rows, 1)))
        add_parameter_list(name, only, budget, record, screen)
        record["complete"] = name == names[-1]
        write_record(record, target)
    for bar in record["bars"]:
        screen.line(bar["sentence"])
    screen.line(f"wrote {target}")
    return record


def selectable() -> list[str]:
    """The words that `only` may contain."""
    return [contestant.name for contestant in contestants.CONTESTANTS] + [WITH_TARGETS]


def select(list_name: str, only: Sequence[str] | None, device: str) -> list[contestants.Contestant]:
    """The contestants that `only` names and that run on this list and device."""
    names = set(only or selectable())
    if only and WITH_TARGETS in only:
        names |= compared_by_targets(device, list_name)
    return [c for c in contestants.CONTESTANTS if c.name in names and c.runs_on(list_name, device)]


def check_names(kind: str, names: Sequence[str], known: Sequence[str] | dict[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


def new_record(budget: Budget, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "commit": provenance.commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "complete": False,
        "machine": provenance.machine(budget.device),
        "settings": {
            "device": budget.device,
            "repeats": budget.repeats,
            "seconds": budget.seconds,
        },
        # Training compiles this helper in the background; a measurement waits for it.
        "looks_in_c++": changes.wait_until_compiled() if budget.device == "cuda" else None,
        "copy": None,
        "lists": {},
        "skipped": {},
        "bars": [],
    }


def add_parameter_list(
    name: str,
    only: Sequence[str] | None,
    budget: Budget,
    record: dict[str, Any],
    screen: PlainScreen,
) -> None:
    """Measure one list into the record, or record why it was skipped."""
    device, shapes = budget.device, LISTS[name].shapes()
    entered = []
    for contestant in select(name, only, device):
        if contestant.missing_package is None:
            entered.append(contestant)
        elif contestant.name not in record["skipped"]:
            reason = f"{contestant.missing_package} is not installed"
            record["skipped"][contestant.name] = reason
            screen.line(f"{contestant.name} skipped: {reason}")
    if list(only or ()) == [WITH_TARGETS] and not compared_by_targets(device, name):
        record["skipped"][name] = f"it has no targets on {device}"
    elif not entered:
        record["skipped"][name] = f"none of {', '.join(only or ())} runs on {device}"
    elif not groups_that_fit(entered, shapes, budget):
        least = min(needed_bytes([contestant], shapes, device) for contestant in entered)
        record["skipped"][name] = too_large(least, budget)
    if name in record["skipped"]:
        screen.line(f"{LISTS[name].title} skipped: {record['skipped'][name]}")
        return
    first = compared_by_targets(device, name)
    measured = measure_parameter_list(name, entered, budget, screen.progress, first)
    show_parameter_list(measured, device, screen)
    record["lists"][name] = measured
    targets = [t for t in TARGETS if (t.device, t.parameters) == (device, name)]
    record["bars"] += [target.check(measured["rows"]) for target in targets]
    copies = [one["copy"]["gb_per_s"] for one in record["lists"].values()]
    record["copy"] = {"gb_per_s": median(copies), "gb_per_s_of_lists": copies}


def write_record(record: dict[str, Any], target: Path) -> None:
    """Write the record atomically, each series of numbers on one line."""
    text = json.dumps(record, indent=1, allow_nan=False)
    text = re.sub(r"\[\n[-+.,\s\de]+\]", lambda series: " ".join(series[0].split()), text)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, text + "\n")

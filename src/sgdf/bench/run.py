"""Measure, show and record the cost of a step (`sgdf bench step`)."""

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sgdf.bench import contestants
from sgdf.bench.measure import measure_parameter_list
from sgdf.bench.memory import GIB, free_bytes, groups_that_fit, needed_bytes, too_large
from sgdf.bench.screens import PlainScreen, open_screen, show_parameter_list
from sgdf.bench.shapes import LISTS, default_lists
from sgdf.bench.targets import TARGETS
from sgdf.bench.timing import Budget
from sgdf.kernels import changes
from sgdf.support import provenance
from sgdf.support.errors import UserError, unknown
from sgdf.support.files import write_atomically

REPEATS = 30
SECONDS = 2.0


def step(
    *,
    device: str | None = None,
    lists: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    memory: float | None = None,
    out: Path | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Measure the time and memory of one step of each optimizer, show tables, write a JSON record.

    Args:
        device: "cpu" or "cuda" (default: cuda if there is one).
        lists: names of `sgdf.bench.shapes.LISTS` (default: those meant for the device).
        only: names of `sgdf.bench.contestants.CONTESTANTS` (default: all).
        repeats: timings of each contestant.
        seconds: limit for each contestant.
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
    check_names("contestant", only or (), [c.name for c in contestants.CONTESTANTS])
    limit = math.inf if memory is None else memory * GIB
    budget = Budget(device, repeats, seconds, min(limit, free_bytes(device)))
    target = out or Path("results") / f"bench-step-{device}.json"
    record, screen = new_record(budget, command), open_screen()
    for name in names:
        add_parameter_list(name, only, budget, record, screen)
        record["complete"] = name == names[-1]
        write_record(record, target)
    for bar in record["bars"]:
        screen.line(bar["sentence"])
    screen.line(f"wrote {target}")
    return record


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
    entered = [
        c
        for c in contestants.CONTESTANTS
        if c.runs_on(name, device) and (not only or c.name in only)
    ]
    if not entered:
        record["skipped"][name] = f"none of {', '.join(only or ())} runs on {device}"
    elif not groups_that_fit(entered, shapes, budget):
        least = min(needed_bytes([contestant], shapes, device) for contestant in entered)
        record["skipped"][name] = too_large(least, budget)
    if name in record["skipped"]:
        screen.line(f"{LISTS[name].title} skipped: {record['skipped'][name]}")
        return
    measured = measure_parameter_list(name, entered, budget, screen.progress)
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

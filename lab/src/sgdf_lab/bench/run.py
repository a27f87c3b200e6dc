"""Measure, show and record the cost of a step (`sgdf bench step`), and check the targets."""

import contextlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from sgdf.optim import wait_until_compiled
from sgdf_lab.bench import contestants
from sgdf_lab.bench.contestants import LISTS, MATRIX_LISTS, WITH_TARGETS
from sgdf_lab.bench.measure import (
    GIB,
    Budget,
    disturbed,
    free_bytes,
    groups_that_fit,
    measure_parameter_list,
    needed_bytes,
    too_large,
)
from sgdf_lab.support import provenance, tables
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.files import write_atomically
from sgdf_lab.support.tables import Column, say

# --- targets that our optimizers were built for ---------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A limit for one list on one device; without a contestant, for the worst fused path of ours.

    The fields are keys of the JSON record, where targets are called bars.
    """

    device: str
    parameters: str
    contestant: str | None
    quantity: str
    limit: float
    says: str

    @property
    def at_least(self) -> bool:
        return self.quantity == "of_copy"

    def check(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Compare the rows of the list with the limit; busy machines meet and miss nothing."""
        fused = {c.name for c in contestants.CONTESTANTS if c.ours and c.fused}
        names = fused if self.contestant is None else {self.contestant}
        values = [row[self.quantity] for row in rows if row["name"] in names]
        measured = max((value for value in values if value is not None), default=None)
        met, verdict = None, "not measured"
        if measured is not None and disturbed(self.device, rows):
            verdict = f"measured {measured:.3g} on a busy machine: inconclusive"
        elif measured is not None:
            met = measured >= self.limit if self.at_least else measured <= self.limit
            verdict = f"measured {measured:.3g}: {'met' if met else 'missed'}"
            if not met and self.limit:
                verdict += f" by {abs(measured / self.limit - 1):.1%}"
        sentence = f"target: {LISTS[self.parameters].title}: {self.says}: {verdict}"
        return {**asdict(self), "measured": measured, "met": met, "sentence": sentence}


FUSED, INT8, CONSTANT = "sgdf-fused", "sgdf-fused-int8-state", "sgdf-fused-constant"
DERIVED, DERIVED_INT8 = "filteradamw-fused-derived", "filteradamw-fused-derived-int8-state"
DERIVED_BF16 = "filteradamw-fused-derived-bf16-int8-state-random"
CONSTANT_ADAM, FILTER = "filteradamw-fused-constant", "wienerfilter-fused"
SGD, ADAMW, COPY = "times_sgd_fused", "times_adamw_fused", "of_copy"
EXTRA = "extra_memory_bytes_in_all"
GPT_11M, EIGEN = "gpt-11m-matrices", "filtermuon-eigenbasis"
MUON, SOAP = "times_muon", "times_soap"
TARGETS = (
    Target("cuda", "resnet50", FUSED, SGD, 0.5, "SGDF fused <= 0.5 x SGD fused"),
    Target("cuda", "vit-l", FUSED, ADAMW, 0.6, "SGDF fused <= 0.6 x AdamW fused"),
    Target("cuda", "gpt", FUSED, COPY, 0.95, "SGDF fused >= 0.95 of the copy bandwidth"),
    Target("cuda", "gpt", FUSED, ADAMW, 0.76, "SGDF fused <= 0.76 x AdamW fused"),
    Target("cuda", "gpt", INT8, SGD, 0.75, "SGDF int8 state <= 0.75 x SGD fused"),
    Target("cuda", "gpt", INT8, "state_bytes", 2.1, "SGDF int8 state <= 2.1 bytes per parameter"),
    Target("cuda", "gpt", CONSTANT, SGD, 0.87, "SGDF constant gain <= 0.87 x SGD fused"),
    Target("cuda", "gpt", CONSTANT, COPY, 0.97, "SGDF constant gain >= 0.97 of the copy bandwidth"),
    Target("cuda", "resnet50", DERIVED, ADAMW, 0.5, "FilterAdamW derived <= 0.5 x AdamW fused"),
    Target("cuda", "gpt", DERIVED, ADAMW, 0.82, "FilterAdamW derived <= 0.82 x AdamW fused"),
    Target("cuda", "gpt", DERIVED, COPY, 0.95, "FilterAdamW derived >= 0.95 of the copy bandwidth"),
    Target("cuda", "gpt", DERIVED, "state_bytes", 8.0, "FilterAdamW derived <= 8 bytes of state"),
    Target("cuda", "gpt", DERIVED_INT8, ADAMW, 0.52,
           "FilterAdamW derived, int8 state <= 0.52 x AdamW fused"),
    Target("cuda", "gpt", DERIVED_INT8, "state_bytes", 2.1,
           "FilterAdamW derived, int8 state <= 2.1 bytes per parameter"),
    Target("cuda", "gpt", DERIVED_BF16, ADAMW, 0.5,
           "FilterAdamW derived, bf16 parameters, int8 state <= 0.5 x AdamW fused in bf16"),
    Target("cuda", "gpt", CONSTANT_ADAM, ADAMW, 0.82,
           "FilterAdamW constant gain <= 0.82 x AdamW fused"),
    Target("cuda", "gpt", FILTER, COPY, 0.95, "WienerFilter alone >= 0.95 of the copy bandwidth"),
    *(
        Target("cuda", name, None, EXTRA, 0, "bytes that a fused step allocates <= 0")
        for name in ("resnet50", "vit-l", "gpt")
    ),
    Target("cpu", "one-tensor", FUSED, ADAMW, 1.15, "SGDF <= 1.15 x AdamW fused"),
    Target("cpu", "one-tensor", DERIVED, ADAMW, 1.1, "FilterAdamW derived <= 1.1 x AdamW fused"),
    Target("cpu", "one-tensor", FILTER, ADAMW, 1.0, "WienerFilter alone <= 1.0 x AdamW fused"),
    Target("cpu", "resnet18", FUSED, ADAMW, 1.5, "SGDF <= 1.5 x AdamW fused"),
    Target("cpu", GPT_11M, "filtermuon", MUON, 0.8, "FilterMuon <= 0.8 x torch's Muon"),
    Target("cpu", GPT_11M, EIGEN, MUON, 1.6, "FilterMuon, eigenbasis <= 1.6 x torch's Muon"),
    Target("cpu", GPT_11M, EIGEN, "worst_step", 3.0, "FilterMuon, eigenbasis: no step > 3 medians"),
    Target("cpu", GPT_11M, "filtersoap", SOAP, 0.7, "FilterSOAP <= 0.7 x SOAP on the same sides"),
)  # fmt: skip

#: What the contestants with a target are compared with, and one that is reported without a target.
BESIDE = (
    "sgd-fused",
    "adamw-fused",
    "adamw-fused-bf16",
    "torchao-adamw8bit",
    "bitsandbytes-adamw8bit",
    "filteradam-fused-int8-state",
)
MATRIX_RIVALS = ("muon-loop", "soap-loop")


def compared_by_targets(device: str, list_name: str) -> set[str]:
    """The names of the contestants that the targets of a list compare; empty if it has none."""
    targets = [t for t in TARGETS if (t.device, t.parameters) == (device, list_name)]
    named = {t.contestant for t in targets if t.contestant is not None}
    rivals = MATRIX_RIVALS if list_name in MATRIX_LISTS else BESIDE
    return named | set(rivals) if named else set()


# --- terminal -------------------------------------------------------------------------------------

COLUMNS = [
    *(Column(name, "label") for name in ("optimizer", "path", "params")),
    *map(Column, ("state B/param", "ms", "± IQR/2", "GB/s", "% of copy")),
    *map(Column, ("x SGD fused", "x AdamW fused", "extra mem %")),
]
FULL_WIDTH = 200  # of what is written to a file


def open_console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = FULL_WIDTH
    return console


@contextlib.contextmanager
def shown_progress(console: Console, name: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; elsewhere, where it would come at the end, a line for each stage."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda doing: progress.update(task, advance=1, description=f"{name}: {doing}")
        return
    said: set[str] = set()

    def tick(doing: str) -> None:
        if doing not in said:
            print(f"{name}: {doing}", file=sys.stderr, flush=True)
        said.add(doing)

    yield tick


def show_parameter_list(measured: dict[str, Any], device: str, console: Console) -> None:
    """Show the table of one list, and below it the reasons of failures."""
    copy = measured["copy"]
    tensors = f"{measured['tensors']} tensor" + "s" * (measured["tensors"] > 1)
    title = f"{measured['title']}: {tensors}, {measured['parameters']:,} parameters"
    title += f"; a copy moves {copy['gb_per_s']:,.1f} ± {copy['gb_per_s_iqr'] / 2:.1f} GB/s"
    reasons: list[str] = []
    cells = []
    for row in measured["rows"]:
        if row["error"] and row["error"] not in reasons:
            reasons.append(row["error"])
        failed = f"failed ({reasons.index(row['error']) + 1})" if row["error"] else None
        cells.append(cells_of(row, failed))
    bold = [number for number, row in enumerate(cells) if row[:2] == ["SGDF", "fused"]]
    console.print()
    console.print(tables.as_rich(COLUMNS, cells, console.width, title=title, bold=bold))
    console.print()
    if disturbed(device, measured["rows"]):
        say(console, "Other programs kept CPUs busy meanwhile: these times can be far too long.")
    for number, reason in enumerate(reasons, 1):
        say(console, f"({number}) {reason}")


def cells_of(row: dict[str, Any], failed: str | None) -> list[str]:
    def number(value: float | None, form: str = ".2f") -> str:
        return "-" if value is None else format(value, form)

    ms, half_iqr = row["ms"], None if row["ms_iqr"] is None else row["ms_iqr"] / 2
    places = 3 if ms is None or ms < 10 else 2 if ms < 100 else 1
    fraction = row["of_copy"]
    return [
        row["optimizer"],
        row["path"],
        row["params_dtype"],
        number(row["state_bytes"]),
        failed or number(ms, f".{places}f"),
        number(half_iqr, f".{places}f"),
        number(row["gb_per_s"], ",.1f"),
        number(None if fraction is None else 100 * fraction, ".1f"),
        number(row["times_sgd_fused"]),
        number(row["times_adamw_fused"]),
        number(row["extra_memory_percent"]),
    ]


# --- the command ----------------------------------------------------------------------------------


def step(
    *,
    device: str | None = None,
    lists: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    repeats: int = contestants.REPEATS,
    seconds: float = contestants.SECONDS,
    total: float | None = None,
    memory: float | None = None,
    out: Path | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Measure the time and memory of one step of each optimizer, show tables, write a JSON record.

    Args:
        device: "cpu" or "cuda" (default: cuda if there is one).
        lists: names of `sgdf_lab.bench.contestants.LISTS` (default: those meant for the device).
        only: names of `sgdf_lab.bench.contestants.CONTESTANTS`, or "targets" for those that the
            targets of a list compare (default: all).
        repeats: timings of each contestant.
        seconds: limit for each contestant.
        total: approximate limit for all together, in seconds: it lowers `seconds`.
        memory: limit in GiB (default: what is free).
        out: the file of the record (default: bench/step-DEVICE.json), which is written
            after each list.
        command: recorded as the command that was typed.

    Returns:
        The record.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA device here: --device cpu")
    names = list(dict.fromkeys(lists or contestants.default_lists(device)))
    check_names("list", names, LISTS)
    check_names("contestant", only or (), contestants.selectable())
    limit = math.inf if memory is None else memory * GIB
    budget = Budget(device, repeats, seconds, min(limit, free_bytes(device)))
    target = out or Path("bench") / f"step-{device}.json"
    start = time.perf_counter()
    record, console = new_record(budget, command), open_console()
    record["settings"]["total"] = total
    say(console, f"Measuring {', '.join(names)} on {device}; the record goes to {target}")
    for number, name in enumerate(names):
        if total is not None:
            left = total - (time.perf_counter() - start)
            rows = sum(len(select(one, only, device)) for one in names[number:])
            budget = replace(budget, seconds=min(seconds, max(left, 0) / max(rows, 1)))
        add_parameter_list(name, only, budget, record, console)
        record["complete"] = name == names[-1]
        write_record(record, target)
    for bar in record["bars"]:
        say(console, bar["sentence"])
    say(console, f"wrote {target}")
    return record


def select(list_name: str, only: Sequence[str] | None, device: str) -> list[contestants.Contestant]:
    """The contestants that `only` names and that run on this list and device."""
    names = set(only or contestants.selectable())
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
        "looks_in_c++": wait_until_compiled() if budget.device == "cuda" else None,
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
    console: Console,
) -> None:
    """Measure one list into the record, or record why it was skipped."""
    device, shapes = budget.device, LISTS[name].shapes()
    entered = []
    for contestant in select(name, only, device):
        if not contestant.is_missing:
            entered.append(contestant)
        elif contestant.name not in record["skipped"]:
            reason = f"{contestant.package} is not installed"
            record["skipped"][contestant.name] = reason
            say(console, f"{contestant.name} skipped: {reason}")
    if list(only or ()) == [WITH_TARGETS] and not compared_by_targets(device, name):
        record["skipped"][name] = f"it has no targets on {device}"
    elif not entered:
        record["skipped"][name] = f"none of {', '.join(only or ())} runs on {device}"
    elif not groups_that_fit(entered, shapes, budget):
        least = min(needed_bytes([contestant], shapes, device) for contestant in entered)
        record["skipped"][name] = too_large(least, budget)
    if name in record["skipped"]:
        say(console, f"{LISTS[name].title} skipped: {record['skipped'][name]}")
        return
    first = compared_by_targets(device, name)
    measured = measure_parameter_list(
        name, entered, budget, partial(shown_progress, console), first
    )
    show_parameter_list(measured, device, console)
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

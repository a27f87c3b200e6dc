"""The torture matrix: try faults and inputs, and count what happens.

    make torture                                            all of it, about 15 minutes
    python lab/tests/torture --minutes 5                     less
    python lab/tests/torture --only kills --case "digits"    the cases whose names begin so

The kinds share the time, and their rows take turns (schedule.py). Everything is tried once; the
time that is left goes to further rounds with other random numbers.
Exit code 1 if there is any bug, with the command that tries it again.
"""

import argparse
import atexit
import functools
import itertools
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import pages
from sgdf_lab.support import provenance
from sgdf_lab.support.files import write_atomically, write_json
from torture import (
    faults,
    gradients,
    hostile_files,
    hostile_plans,
    hostile_runs,
    kills,
    operations,
    states,
)
from torture.bench import Bench, Peace
from torture.outcome import BUGS, GOOD, TRACEBACK, Case, Outcome, joined
from torture.schedule import Schedule, by_turns

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "torture.json"
PAGE = ROOT / "docs" / "reliability.md"
KINDS = ("kills", "operations", "faults", "hostile", "gradients", "states")
FURTHER = ("kills", "operations", "gradients", "states")  # that have more to try in a further round
IN_THIS_PROCESS = ("gradients", "states")  # of which one case runs at a time


def cases_of(kind: str, round_: int, peace: Peace, folder: Path) -> Iterator[Case]:
    if kind == "kills":
        yield from kills.cases(round_)
    elif kind == "operations":
        yield from operations.cases(round_, planning_bench(peace), folder)
    elif kind == "gradients":
        yield from gradients.cases(round_)
    elif kind == "states":
        yield from states.cases(round_)
    elif kind == "faults":
        yield from faults.cases()
    else:
        yield from hostile_runs.cases()
        yield from hostile_files.cases()
        yield from hostile_plans.cases()


@functools.cache
def planning_bench(peace: Peace) -> Bench:
    """One for all rounds: it takes some seconds to start."""
    bench = Bench(peace)
    atexit.register(bench.close)
    return bench


# --- counting -------------------------------------------------------------------------------------


class Tally:
    """Outcomes by row of the table, and the bugs."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.bugs: list[dict[str, str]] = []

    def row(self, kind: str, what: str) -> dict[str, Any]:
        """What became of its cases; `planned` are those of the first round, `tried` of these."""
        counts = dict.fromkeys(("planned", "tried", "cases", "faults"), 0)
        empty = {"kind": kind, "what": what, **counts, "seconds": 0.0, "numbers": {}}
        return self.rows.setdefault(
            (kind, what), empty | {"outcomes": dict.fromkeys((*GOOD, *BUGS), 0)}
        )

    def add(self, case: Case, outcome: Outcome, round_: int = 0, seconds: float = 0.0) -> None:
        row = self.row(case.kind, case.row)
        row["cases"] += 1
        row["tried"] += round_ == 0
        row["seconds"] = round(row["seconds"] + seconds, 3)
        row["faults"] += outcome.faults
        row["outcomes"][outcome.word] += 1
        row["numbers"] = joined(row["numbers"], outcome.numbers)
        if outcome.is_bug:
            again = ["python", "lab/tests/torture", "--only", case.kind, "--case", case.name]
            self.bugs.append({
                "kind": case.kind, "case": case.name, "outcome": outcome.word,
                "again": shlex.join(again), "detail": outcome.detail,
            })  # fmt: skip

    def sorted_rows(self) -> list[dict[str, Any]]:
        return sorted(self.rows.values(), key=lambda row: KINDS.index(row["kind"]))


# --- trying ---------------------------------------------------------------------------------------


def scheduled(options: argparse.Namespace, peace: Peace, folder: Path, end: float) -> Schedule:
    """All cases once, then further rounds."""

    def plan(kind: str, round_: int) -> list[Case]:
        place = folder / f"{kind}-{round_}"
        place.mkdir(parents=True)
        found = cases_of(kind, round_, peace, place)
        matching = [case for case in found if case.name.startswith(options.case or "")]
        return by_turns(matching, random.Random(round_))[: options.count]

    def rounds(kind: str) -> Iterable[int]:
        return rounds_of(options.case) if kind in FURTHER and options.count is None else (0,)

    kinds = [options.only] if options.only else KINDS
    return Schedule(kinds, plan, rounds, end, together=IN_THIS_PROCESS)


def rounds_of(case: str | None) -> Iterable[int]:
    """Without end; of a case, whose name may end with the number of its round, only these."""
    if case is None:
        return itertools.count()
    last = case.split()[-1]
    return sorted({0, int(last) if last.isdecimal() else 0})


def run_all(options: argparse.Namespace, console: Console) -> Tally:
    """Try cases in several threads until the time is over."""
    tally, peace = Tally(), Peace()
    scratch = Path(tempfile.mkdtemp(prefix="sgdf-torture-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    end = time.monotonic() + 60 * options.minutes
    schedule = scheduled(options, peace, scratch / "planning", end)
    lock = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[done]} cases, {task.fields[bugs]} bugs"))  # fmt: skip

    def work(number: int) -> None:
        bench = Bench(peace)
        for i in itertools.count():
            turn = schedule.next()
            if turn is None:
                break
            folder = scratch / f"{number}-{i}"
            folder.mkdir()
            start = time.monotonic()
            try:
                outcome = turn.case.tried(bench, folder)
            except Exception as error:
                outcome = Outcome(TRACEBACK, detail=f"in the matrix itself: {error!r}")
            schedule.done(turn)
            shutil.rmtree(folder, ignore_errors=True)
            with lock:
                tally.add(turn.case, outcome, turn.round, time.monotonic() - start)
                show(turn.case, outcome)
        bench.close()

    def show(case: Case, outcome: Outcome) -> None:
        done = sum(row["cases"] for row in tally.rows.values())
        spent = min(1.0, 1 - (end - time.monotonic()) / (60 * options.minutes))
        display.update(bar, completed=spent, description=f"{case.kind}: {case.name}"[:60],
                       done=done, bugs=len(tally.bugs))  # fmt: skip
        if outcome.is_bug or options.verbose:
            line = f"{outcome.word}: {case.kind}: {case.name}: {outcome.detail[-800:]}"
            display.console.print(line, markup=False, highlight=False, soft_wrap=True)

    with Progress(*columns, console=console) as display:
        bar = display.add_task("starting", total=1.0, done=0, bugs=0)
        numbers = range(options.jobs)
        workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in numbers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for (kind, row), count in schedule.planned.items():
        tally.row(kind, row)["planned"] = count
    return tally


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="python lab/tests/torture", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=15.0, help="for all of it (default %(default)s)")
    add("--only", choices=KINDS, help="one kind of fault")
    add("--case", metavar="NAME", help="only the cases whose names begin so")
    add("--count", type=int, metavar="N", help="only the first N cases of each kind")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time (default: cores)")
    add("--verbose", action="store_true", help="print the outcome of every case")
    add("--out", type=Path, help=f"default {RESULTS.relative_to(ROOT)}, if all kinds are tried")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    start = time.monotonic()
    tally = run_all(options, console)
    rows = tally.sorted_rows()
    partial = options.only or options.case or options.count is not None
    left = [f"{row['kind']}: {row['what']}" for row in rows if row["tried"] == 0]
    reached = {row["kind"] for row in rows} == {*KINDS}
    target = options.out or (None if partial else RESULTS)
    if target:
        record = {
            "command": shlex.join(["python", "lab/tests/torture", *sys.argv[1:]]),
            "commit": provenance.commit(),
            "machine": provenance.machine("cpu"),
            "seconds": round(time.monotonic() - start),
            "complete": reached and not left and not partial,
            "rows": rows,
            "bugs": tally.bugs,
        }
        write_json(target, json.loads(json.dumps(record)), indent=1)
    tables = (pages.torture_kinds_table, pages.torture_table, pages.gradients_table)
    for table in tables:
        console.print(table(rows), markup=False, highlight=False, soft_wrap=True)
    if target:
        console.print(f"wrote {target}")
    if target == RESULTS:
        write_atomically(PAGE, pages.regenerated(PAGE, PAGE.read_text(encoding="utf-8")))
        console.print(f"wrote the tables of {PAGE}")
    if left or not (reached or partial):
        console.print(f"not everything had its turn, so give more --minutes: {', '.join(left)}")
    for bug in tally.bugs:
        console.print(f"{bug['outcome']}: {bug['again']}", markup=False, soft_wrap=True)
    return 1 if tally.bugs else 0

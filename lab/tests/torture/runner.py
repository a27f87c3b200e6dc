"""The torture matrix: try faults and inputs, and count what happens.

    make torture                                            all of it, about 15 minutes
    python lab/tests/torture --minutes 5                     less
    python lab/tests/torture --only kills --case "digits"    the cases whose names begin so

Everything is tried once; the time that is left goes to further rounds with other random numbers.
Exit code 1 if there is any bug, with the command that tries it again.
"""

import argparse
import atexit
import itertools
import json
import os
import queue
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

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "torture.json"
PAGE = ROOT / "docs" / "reliability.md"
KINDS = ("kills", "operations", "faults", "hostile", "gradients", "states")
FURTHER = ("kills", "operations", "gradients", "states")  # that have more to try in a further round


def cases_of(kind: str, round_: int, peace: Peace, folder: Path) -> Iterator[Case]:
    if kind == "kills":
        yield from kills.cases(round_)
    elif kind == "operations":
        bench = Bench(peace)
        yield from operations.cases(round_, bench, folder)
        bench.close()
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


# --- counting -------------------------------------------------------------------------------------


class Tally:
    """Outcomes by row of the table, and the bugs."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.bugs: list[dict[str, str]] = []

    def add(self, case: Case, outcome: Outcome) -> None:
        empty = {"kind": case.kind, "what": case.row, "cases": 0, "faults": 0, "numbers": {}}
        row = self.rows.setdefault(
            (case.kind, case.row), empty | {"outcomes": dict.fromkeys((*GOOD, *BUGS), 0)}
        )
        row["cases"] += 1
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


def planned(options: argparse.Namespace, peace: Peace, folder: Path) -> Iterator[Case]:
    """All cases once, then further rounds for as long as the caller takes them."""
    kinds = [options.only] if options.only else list(KINDS)
    for round_ in rounds(options.case):
        for kind in kinds:
            if round_ and kind not in FURTHER:
                continue
            place = folder / f"{kind}-{round_}"
            place.mkdir(parents=True)
            found = cases_of(kind, round_, peace, place)
            matching = (case for case in found if case.name.startswith(options.case or ""))
            yield from itertools.islice(matching, options.count)
        if round_ == 0:
            yield from [ROUND]
        if not any(kind in FURTHER for kind in kinds):
            return


def rounds(case: str | None) -> Iterable[int]:
    """Without end; of a case, whose name may end with the number of its round, these alone."""
    if case is None:
        return itertools.count()
    last = case.split()[-1]
    return sorted({0, int(last) if last.isdecimal() else 0})


ROUND = Case("", "", "", lambda *_: Outcome(GOOD[0]))  # marks the end of the first round


def run_all(options: argparse.Namespace, console: Console) -> tuple[Tally, bool]:
    """Try cases in several threads until the time is over; false if not all were tried once."""
    tally, peace = Tally(), Peace()
    scratch = Path(tempfile.mkdtemp(prefix="sgdf-torture-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    end = time.monotonic() + 60 * options.minutes
    waiting: queue.Queue[Case | None] = queue.Queue(maxsize=1)
    lock = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[done]} cases, {task.fields[bugs]} bugs"))  # fmt: skip

    def work(number: int) -> None:
        bench = Bench(peace)
        for i in itertools.count():
            case = waiting.get()
            if case is None:
                break
            folder = scratch / f"{number}-{i}"
            folder.mkdir()
            try:
                outcome = case.tried(bench, folder)
            except Exception as error:
                outcome = Outcome(TRACEBACK, detail=f"in the matrix itself: {error!r}")
            shutil.rmtree(folder, ignore_errors=True)
            with lock:
                tally.add(case, outcome)
                show(case, outcome)
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
        complete = feed(options, peace, scratch, waiting, end)
        for _ in workers:
            waiting.put(None)
        for worker in workers:
            worker.join()
    return tally, complete


def feed(options: Any, peace: Peace, scratch: Path, waiting: Any, end: float) -> bool:
    """Hand out cases until the time is over; false if not all were tried once."""
    complete = False
    for case in planned(options, peace, scratch / "planning"):
        if case is ROUND:
            complete = True
            if options.count is not None:
                break
            continue
        if time.monotonic() > end:
            break
        waiting.put(case)
    return complete


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
    tally, complete = run_all(options, console)
    rows = tally.sorted_rows()
    console.print(pages.torture_table(rows), markup=False, highlight=False, soft_wrap=True)
    if any(row["kind"] == "gradients" for row in rows):
        console.print(pages.gradients_table(rows), markup=False, highlight=False, soft_wrap=True)
    partial = options.only or options.case or options.count is not None
    target = options.out or (None if partial else RESULTS)
    if target:
        record = {
            "command": shlex.join(["python", "lab/tests/torture", *sys.argv[1:]]),
            "commit": provenance.commit(),
            "machine": provenance.machine("cpu"),
            "seconds": round(time.monotonic() - start),
            "complete": complete and not partial,
            "rows": rows,
            "bugs": tally.bugs,
        }
        write_json(target, json.loads(json.dumps(record)), indent=1)
        console.print(f"wrote {target}")
        if target == RESULTS:
            write_atomically(PAGE, pages.regenerated(PAGE, PAGE.read_text(encoding="utf-8")))
            console.print(f"wrote the tables of {PAGE}")
    if not complete:
        console.print("the time was over before all cases were tried once: give more --minutes")
    for bug in tally.bugs:
        console.print(f"{bug['outcome']}: {bug['again']}", markup=False, soft_wrap=True)
    return 1 if tally.bugs else 0

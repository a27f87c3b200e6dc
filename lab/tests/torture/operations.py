"""Kills at every disk operation of a run: before each one, or half way through a write."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from runs.commands import EVERY_EPOCH, fault
from torture.bench import Bench
from torture.outcome import DIFFERENT, SAME, Bug, Case, Outcome, check_success
from torture.tasks import TASKS, SmallTask, command

KIND = "operations"
PAIRS = 40  # of operations, in a further round


@cache
def short(task: SmallTask) -> tuple[str, ...]:
    """The task in three epochs."""
    words = command(task, "sgdf", *task.three_epochs)
    return (*words, "--set", "batch=512") if task.name == "digits" else words


def traced(bench: Bench, task: SmallTask, folder: Path) -> list[tuple[str, int]]:
    """The disk operations of an undisturbed run in order, each with its count so far."""
    out = folder / task.name / "out"  # whose name is that of an operation
    out.parent.mkdir(parents=True)
    trace = out.with_name("trace")
    request = {"fault": {"trace": str(trace)}, "saving_share": EVERY_EPOCH}
    check_success(bench.run(short(task), out, images=task.images, **request))
    seen: Counter[str] = Counter()
    moments = []
    for op in trace.read_text().splitlines():
        moments.append((op, seen[op]))
        seen[op] += 1
    return moments


def cases(round_: int, bench: Bench, folder: Path, every: int = 1) -> Iterator[Case]:
    """Every operation of a run on digits, and one write in 20 of the others' checkpoints.

    Args:
        round_: in a further round, pairs: a kill at one operation, and one of the next start.
        bench, folder: for a run that lists the operations.
        every: of the many writes of a checkpoint, take one in so many.
    """
    for task in TASKS.values():
        moments = traced(bench, task, folder)
        step = every if task.name == "digits" else max(20, every)
        if round_:
            chance = random.Random(f"{task.name} {round_}")
            for i in range(PAIRS):
                pair = (chance.choice(moments), chance.choice(moments))
                name = f"{task.name} pair {i} {round_}"
                yield Case(KIND, f"{task.name}, two kills", name, partial(killed_at, task, pair))
            continue
        for op, nth in moments:
            if op == "write last.pt.new" and nth % step:
                continue
            verb = op.partition(" ")[0]
            row = f"{task.name}, {verb}" if task.name == "digits" else f"{task.name}, any"
            yield Case(KIND, row, f"{task.name} {op} {nth}", partial(killed_at, task, ((op, nth),)))


def killed_at(
    task: SmallTask, moments: tuple[tuple[str, int], ...], bench: Bench, folder: Path
) -> Outcome:
    argv = short(task)
    expected = bench.undisturbed(argv, folder, images=task.images)
    out, kills = folder / "out", 0
    for i, (op, nth) in enumerate(moments):
        ended = bench.run(argv, out, images=task.images, **fault(op, "SIGKILL", nth))
        if ended.code == -9:
            kills += 1
        elif ended.code != 0 or i == 0:  # a second start may do less
            raise Bug(DIFFERENT, f"{op} {nth} not reached: {ended.code} {ended.output[-500:]}")
    bench.ends_the_same(argv, out, expected, images=task.images)
    return Outcome(SAME, kills, f"killed at {moments}")

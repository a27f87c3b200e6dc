"""Kills at random instants: SIGKILL, again and again, then the run is left to end."""

import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from runs.commands import EVERY_EPOCH, Ended, folder_in
from sgdf_lab.runs import run_folder
from torture.bench import CPU, Bench, Left, check_same
from torture.outcome import CRASH, DIFFERENT, HANG, SAME, Bug, Case, Outcome, check_success
from torture.tasks import TASKS, SmallTask, combinations, command

KIND = "kills"
KILLS = 4  # of one run
STARTS = 8  # of one part: two are killed
SHARDED = ("sgdf", "sgd", "adam", "filter-adam", "torture.tasks.sgdf_int8",
           "torture.tasks.filter_adam_bf16")  # fmt: skip


def cases(round_: int) -> Iterator[Case]:
    """All combinations; another round has other instants."""
    for form, task, optimizer, argv in combinations():
        name = f"{task.name} {optimizer.rpartition('.')[2]} {form} {round_}"
        yield Case(KIND, f"{task.name}, {form}", name, partial(killed, argv, task, name))
    for task in TASKS.values():
        for optimizer in SHARDED if task.shards else ("sgdf", "adam"):
            wide = ("--model", "cnn") if "int8" in optimizer and task.name == "digits" else ()
            shard = ("--shard",) if task.shards else ()
            argv = command(task, optimizer, *wide, *shard)
            label = "sharded" if task.shards else "together"
            row = f"{task.name}, 1, 2, then 1 processes{', sharded' if task.shards else ''}"
            name = f"{task.name} {optimizer.rpartition('.')[2]} {label} {round_}"
            yield Case(KIND, row, name, partial(regrouped, argv, task, name))


def was_killed(ended: Ended) -> bool:
    """Whether the kill hit; a `Bug` if the process ended in any other way than well."""
    if ended.code == 0:
        return False
    if ended.code != -9:
        raise Bug(CRASH, f"exit code {ended.code} before the kill: {ended.output[-2000:]}")
    return True


def killed(
    argv: tuple[str, ...], task: SmallTask, name: str, bench: Bench, folder: Path
) -> Outcome:
    """Delays are parts of the time that the run takes in peace."""
    expected = bench.undisturbed(argv, folder, images=task.images)
    chance, seconds = random.Random(name), expected.seconds
    out, story = folder / "out", []
    request = {"images": task.images, "saving_share": EVERY_EPOCH}
    for attempt in range(KILLS):
        delay, start = chance.uniform(0, 0.7) * seconds, time.monotonic()
        if was_killed(bench.kill_after(bench.start(argv, out, **request), delay)):
            story.append(delay)
        else:  # it was faster: begin another one
            seconds = min(seconds, time.monotonic() - start)
            check_same(folder_in(out), expected)
            out = folder / f"out-{attempt}"
    bench.ends_the_same(argv, out, expected, **request)
    return Outcome(SAME, len(story), f"killed after {story} s")


# --- another number of processes ------------------------------------------------------------------


def regrouped(
    argv: tuple[str, ...], task: SmallTask, name: str, bench: Bench, folder: Path
) -> Outcome:
    """One process, then two, then one again, and random kills in each part.

    Sums over other shares of a batch round differently, so the parts have to end after the same
    epochs in both runs that are compared: every process is killed at the latest in the epoch that
    follows its part, before it saves that.
    """
    alone = bench.undisturbed(without(argv, "--shard"), folder, images=task.images)
    epochs = alone.result["epochs"]
    parts = [(1, epochs // 3), (2, 2 * epochs // 3), (1, epochs)]

    def regrouped_in_peace() -> Left:
        out = folder / "peace"
        for size, last in parts:
            one_part(bench, argv, out, size, last, epochs, task)
        return Left(folder_in(out))

    expected = bench.peace.of((*argv, "regrouped"), regrouped_in_peace)
    chance = random.Random(name)
    out, kills = folder / "out", 0
    for size, last in parts:
        delays = [chance.uniform(0, 0.5) * max(alone.seconds, 0.5) for _ in range(2)]
        kills += one_part(bench, argv, out, size, last, epochs, task, delays, chance)
    check_same(folder_in(out), expected)
    if task.shards:  # the GAN has batch norm, whose statistics are those of a process's share
        check_close(expected, alone)
    return Outcome(SAME, kills)


def without(argv: tuple[str, ...], word: str) -> tuple[str, ...]:
    return tuple(w for w in argv if w != word)


def one_part(
    bench: Bench,
    argv: tuple[str, ...],
    out: Path,
    size: int,
    last: int,
    epochs: int,
    task: SmallTask,
    delays: list[float] | None = None,
    chance: random.Random | None = None,
) -> int:
    """Train up to epoch `last` with `size` processes; returns the number of kills."""
    kills, starts = 0, 0
    delays = list(delays or [])
    while (saved := epochs_saved(out)) < last or (last == epochs and not is_finished(out)):
        request: dict[str, Any] = {"images": task.images, "saving_share": EVERY_EPOCH}
        if last < epochs:
            stop = {"op": "open metrics.jsonl", "nth": last - saved, "do": "SIGKILL"}
            request["fault"] = stop
        team = bench.start_team(argv, out, size, **request)
        if delays and chance:
            victim = team.pop(chance.randrange(len(team)))
            ended = bench.kill_after(victim, delays.pop())
            kills += ended.code == -9
            for other in team:  # as torchrun does: before they have met, they wait for half an hour
                bench.kill_after(other, 0.0)
        else:
            first, *_ = bench.end_team(team)
            if first.code not in (0, -9):
                check_success(first)
        starts += 1
        if starts > STARTS:
            raise Bug(HANG, f"after {starts} starts still {epochs_saved(out)} of {last} epochs")
    return kills


def is_finished(out: Path) -> bool:
    return any(out.glob("*/result.json"))


def epochs_saved(out: Path) -> int:
    for path in sorted(out.glob("*/*.pt")):
        if path.name in ("last.pt", "previous.pt"):
            return int(run_folder.read_checkpoint(path, CPU)["epoch"])
    return 0


def check_close(left: Left, alone: Left) -> None:
    """Regrouped, a run takes the steps of one process up to rounding."""
    for ours, theirs in zip(left.metrics.splitlines(), alone.metrics.splitlines(), strict=True):
        a, b = json.loads(ours)["train_loss"], json.loads(theirs)["train_loss"]
        if abs(a - b) > 0.02 * abs(b) + 2e-3:
            raise Bug(DIFFERENT, f"train_loss {a} with other processes, {b} with one")

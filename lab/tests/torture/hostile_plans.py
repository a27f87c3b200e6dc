"""Hostile files that a user names on the command line, and damaged runs of a sweep with trials."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from damage import DEEP, JSON_TEXTS, SPECIAL, Damage, removed, text
from torture.bench import Bench
from torture.hostile_runs import KIND, MEMORY
from torture.outcome import (
    DIFFERENT,
    SENTENCE,
    Bug,
    Case,
    Outcome,
    check_refusal,
    check_success,
    ended_well,
)

COMMANDS = {
    "a config": ("train", "--config"),
    "a sweep": ("sweep",),
    "a sweep of evidence": ("evidence",),
}
TOML_TEXTS = {
    "an integer of 5,000 digits": f"task = 'digits'\n[set]\nbatch = {'9' * 5000}",
    "a hexadecimal integer of 5,000 digits": f"task = 'digits'\n[set]\nbatch = 0x{'f' * 5000}",
    "deep lists": f"task = 'digits'\n[set]\nbetas = {'[' * DEEP}{']' * DEEP}",
    "a million seeds": f"task = 'digits'\nseed = {list(range(-1_000_000, 0))}",
    "no table": "task = 'digits'\nset = 3",
}
PLAN = """
task = "digits"
epochs = 2
data = "synthetic"
trials = 3
seeds = [1]
[set]
validation = 200
batch = 256
[grid]
optimizer = ["sgdf"]
"""


def cases() -> Iterator[Case]:
    contents = {f"holds {what}": text(content) for what, content in TOML_TEXTS.items()}
    for what, command in COMMANDS.items():
        for how, damage in {**{f"is {k}": v for k, v in SPECIAL.items()}, **contents}.items():
            yield Case(
                KIND, "files that a user names", f"{what} {how}", partial(named, command, damage)
            )
    for file in ("metrics.jsonl", "result.json", "config.json"):
        damages = {f"is {what}": damage for what, damage in SPECIAL.items()}
        damages |= {f"holds {what}": text(content) for what, content in JSON_TEXTS.items()}
        for how, damage in damages.items():
            yield Case(
                KIND, "trials of a sweep", f"trial: {file} {how}", partial(trial, file, damage)
            )


def named(command: tuple[str, ...], damage: Damage, bench: Bench, folder: Path) -> Outcome:
    folder.mkdir(exist_ok=True)
    damage(folder / "it.toml")
    argv = [*command, str(folder / "it.toml")]
    if command[0] != "train":  # to which the bench adds it
        argv += ["--out", str(folder / "out")]
    ended = bench.run(argv, folder / "out", more_memory=MEMORY)
    check_refusal(ended)
    if list((folder / "out").glob("*/metrics.jsonl")):
        raise Bug(DIFFERENT, "something was trained")
    return Outcome(SENTENCE, detail=ended.output)


def trial(file: str, damage: Damage, bench: Bench, folder: Path) -> Outcome:
    """A file of the chosen trial is damaged: the sweep ends with the same runs and numbers."""
    plan = folder / "plan.toml"
    whole = bench.peace.of("sweep with trials", lambda: swept(bench, folder))
    out = folder / "out"
    for name, content in whole.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    plan.write_text(PLAN)
    expected, victim = metrics_in(out), chosen(out)
    damage(victim / file)
    ended = bench.run(sweep(plan, out), out, more_memory=MEMORY)
    word = ended_well(ended)
    if word == SENTENCE:
        removed(victim / file)
        ended = bench.run(sweep(plan, out), out)
    check_success(ended)
    if metrics_in(out) != expected:
        raise Bug(DIFFERENT, "the sweep ended with other runs")
    return Outcome(word)


def sweep(plan: Path, out: Path) -> tuple[str, ...]:
    return "sweep", str(plan), "--device", "cpu", "--jobs", "1", "--out", str(out)


def swept(bench: Bench, folder: Path) -> dict[Path, bytes]:
    """The files of the sweep in peace; the folder of a case is removed after it."""
    folder.mkdir(exist_ok=True)
    (folder / "plan.toml").write_text(PLAN)
    whole = folder / "whole"
    check_success(bench.run(sweep(folder / "plan.toml", whole), whole))
    return {
        path.relative_to(whole): path.read_bytes() for path in whole.rglob("*") if path.is_file()
    }


def metrics_in(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob("*/metrics.jsonl")}


def chosen(out: Path) -> Path:
    """The folder of the trial whose setting ran with the other seed."""
    configs = {path.parent: json.loads(path.read_text()) for path in out.glob("*/config.json")}
    (rate,) = (c["settings"]["lr"] for c in configs.values() if c["seed"] == 1)
    return next(p for p, c in configs.items() if c["seed"] == 0 and c["settings"]["lr"] == rate)

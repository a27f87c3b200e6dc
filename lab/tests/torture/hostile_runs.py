"""Hostile files in the folder of a run: each is refused in one sentence, replaced, or ignored."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from damage import (
    CONTENTS,
    JSON_TEXTS,
    SPECIAL,
    Damage,
    cut,
    flipped,
    marker_of,
    removed,
    text,
)
from runs.commands import fault, folder_in
from torture.bench import Bench, check_same
from torture.operations import short
from torture.outcome import (
    CRASH,
    DIFFERENT,
    RAN_CODE,
    SENTENCE,
    Bug,
    Case,
    Outcome,
    check_success,
    ended_well,
)
from torture.tasks import TASKS

KIND = "hostile"
SHORT = short(TASKS["digits"])
MEMORY = 1 << 30  # more than any of these files needs
FLIPS = 25


def link_elsewhere(path: Path) -> None:
    """A link to a file of the user's: nothing may be written there."""
    removed(path)
    path.parent.with_name("victim").write_text("precious")
    path.symlink_to("../victim")


#: Other runs, whose checkpoint is put where this one's is.
FOREIGN: dict[str, tuple[str, ...]] = {
    "another seed": ("--seed", "7"),
    "another optimizer": ("--optimizer", "adam"),
    "another learning rate": ("--set", "lr=0.05"),
    "another network": ("--model", "cnn"),
    "more epochs": ("--epochs", "9"),
}


# --- the cases ------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    damages: dict[str, Damage] = {f"cut to {share:.0%}": cut(share)
                                  for share in (0, 0.001, 0.1, 0.5, 0.9, 0.999)}  # fmt: skip
    damages |= {f"bit {seed} flipped": flipped(seed) for seed in range(FLIPS)}
    for what, damage in damages.items():
        yield case("damaged checkpoints", f"last.pt {what}", ("last.pt",), damage)
    for what, damage in CONTENTS.items():
        yield case("checkpoints with other contents", f"last.pt with {what}", ("last.pt",), damage)
        both = ("last.pt", "previous.pt")
        yield case("checkpoints with other contents", f"both with {what}", both, damage)
    for what, words in FOREIGN.items():
        yield Case(KIND, "checkpoints of other runs", f"last.pt of {what}", partial(foreign, words))
    names = ("last.pt", "previous.pt", "config.json", "result.json", "env.json", "metrics.jsonl",
             "times.jsonl", "lock", "last.pt.new", "metrics.jsonl.new")  # fmt: skip
    for name in names:
        for what, damage in SPECIAL.items():
            yield case("special files in a run", f"{name} is {what}", (name,), damage)
        name_of_case = f"{name} is a link elsewhere"
        yield case("links out of a run", name_of_case, (name,), link_elsewhere)
    for name in ("config.json", "result.json", "env.json", "metrics.jsonl", "times.jsonl"):
        for what, content in JSON_TEXTS.items():
            yield case("hostile JSON in a run", f"{name} holds {what}", (name,), text(content))


def case(row: str, name: str, files: tuple[str, ...], damage: Damage) -> Case:
    return Case(KIND, row, name, partial(damaged, files, damage))


def damaged(files: tuple[str, ...], damage: Damage, bench: Bench, folder: Path) -> Outcome:
    expected = bench.undisturbed(SHORT, folder)
    run_folder = half_done(bench, folder / "out")
    for file in files:
        damage(run_folder / file)
    return Outcome(resumed(bench, folder / "out", expected, [run_folder / file for file in files]))


def half_done(bench: Bench, out: Path, argv: tuple[str, ...] = SHORT) -> Path:
    """A run killed in its third epoch: both its checkpoints are there."""
    ended = bench.run(argv, out, **fault("open metrics.jsonl", "SIGKILL", nth=2))
    if ended.code != -9:
        raise Bug(CRASH, f"could not be prepared: {ended}")
    return folder_in(out)


def resumed(bench: Bench, out: Path, expected: Any, files: list[Path]) -> str:
    """Resume: the same bytes, or a sentence and the same bytes once the files are removed."""
    [folder] = {file.parent for file in files}
    ended = bench.run(SHORT, out, more_memory=MEMORY)
    if marker_of(files[0]).exists():
        raise Bug(RAN_CODE, f"code of {files[0].name} ran")
    victim = out / "victim"
    if victim.exists() and victim.read_bytes() != b"precious":
        raise Bug(DIFFERENT, f"{files[0].name} was a link, and the file it leads to was written")
    word = ended_well(ended)
    if word == SENTENCE:
        for file in files:
            removed(file)
        check_success(bench.run(SHORT, out))
    check_same(folder, expected)
    return word


def foreign(words: tuple[str, ...], bench: Bench, folder: Path) -> Outcome:
    expected = bench.undisturbed(SHORT, folder)
    other = half_done(bench, folder / "other", (*SHORT, *words))
    mine = half_done(bench, folder / "out")
    shutil.copy(other / "last.pt", mine / "last.pt")
    return Outcome(resumed(bench, folder / "out", expected, [mine / "last.pt"]))

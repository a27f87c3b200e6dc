"""Hostile files in the folder of a run: each is refused in one sentence, replaced, or ignored."""

import os
import pickle
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

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
Damage = Callable[[Path], None]


class Malicious:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def marker_of(path: Path) -> Path:
    """What exists once code of a hostile file has run."""
    return path.parent.with_name("code-ran")


# --- any file -------------------------------------------------------------------------------------


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def instead(make: Damage) -> Damage:
    def damage(path: Path) -> None:
        removed(path)
        make(path)

    return damage


def bound_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


SPECIAL: dict[str, Damage] = {
    "a FIFO": instead(os.mkfifo),
    "a link to /dev/zero": instead(lambda path: path.symlink_to("/dev/zero")),
    "a folder": instead(lambda path: path.mkdir()),
    "a full folder": instead(lambda path: (path / "in").mkdir(parents=True)),
    "a dangling link": instead(lambda path: path.symlink_to("/nonexistent/file")),
    "a link to itself": instead(lambda path: path.symlink_to(path.name)),
    "a socket": instead(bound_socket),
    "empty": instead(lambda path: path.touch()),
    "random bytes": instead(lambda path: path.write_bytes(random.Random(1).randbytes(5000))),
}


def link_elsewhere(path: Path) -> None:
    """A link to a file of the user's: nothing may be written there."""
    removed(path)
    path.parent.with_name("victim").write_text("precious")
    path.symlink_to("../victim")


DEEP = 200_000
JSON_TEXTS = {
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "unclosed lists": "[" * DEEP,
    "null": "null",
    "a number": "1e400",
    "a huge integer": "9" * 10_000,
    "a list": "[]",
    "an empty object": "{}",
    "NaN": '{"status": NaN, "version": NaN}',
    "wrong types": '{"status": [], "version": "1", "epochs": {}, "earlier": 3, "task": 1}',
    "not UTF-8": "\udcff\udcfe{",
}


def text(content: str) -> Damage:
    return instead(lambda path: path.write_bytes(content.encode("utf-8", "surrogateescape")))


# --- checkpoints ----------------------------------------------------------------------------------


def cut(share: float) -> Damage:
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def flipped(seed: int) -> Damage:
    """One bit; a gap between the parts of the file has no meaning, and then nothing changes."""

    def damage(path: Path) -> None:
        data, chance = bytearray(path.read_bytes()), random.Random(seed)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)

    return damage


def changed(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """An intact file with other contents."""

    def damage(path: Path) -> None:
        checkpoint = torch.load(path, weights_only=True)
        other = change(checkpoint)
        torch.save(checkpoint if other is None else other, path)

    return damage


def runs_code(path: Path) -> None:
    checkpoint = torch.load(path, weights_only=True)
    torch.save({**checkpoint, "more": Malicious(marker_of(path))}, path)


def plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Malicious(marker_of(path))))


def old_torch_format(path: Path) -> None:
    checkpoint = {"epoch": 2, "metrics": [], "times": [], "more": Malicious(marker_of(path))}
    torch.save(checkpoint, path, _use_new_zipfile_serialization=False)


def put(*where: Any, value: Any) -> Damage:
    """Another value at this place of the checkpoint."""

    def change(checkpoint: Any) -> None:
        *path, last = where
        for key in path:
            checkpoint = checkpoint[key]
        checkpoint[last] = value

    return changed(change)


def without(name: str) -> Damage:
    return changed(lambda c: {key: value for key, value in c.items() if key != name})


def other_weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return changed(lambda c: {**c, "model": {n: change(value) for n, value in c["model"].items()}})


MOMENTS = ("optimizer", "state", 0)
CONTENTS: dict[str, Damage] = {
    **{
        f"epoch {value!r}": put("epoch", value=value)
        for value in (10**9, -1, 0, 1, 3, "2", 2.5, None, True, [2])
    },
    "no state of the optimizer": put("optimizer", "state", value={}),
    "other settings of the optimizer": put(
        "optimizer", "param_groups", 0, "betas", value=(0.0, 0.0)
    ),
    "no groups of the optimizer": put("optimizer", "param_groups", value=[]),
    "a moment that is a text": put(*MOMENTS, "exp_avg", value="text"),
    "a step that is NaN": put(*MOMENTS, "step", value=torch.tensor(float("nan"))),
    "weights of other shapes": other_weights(lambda _: torch.zeros(3)),
    "weights that are integers": other_weights(torch.Tensor.int),
    "a weight less": changed(lambda c: {**c, "model": dict([*c["model"].items()][:-1])}),
    "no model": without("model"),
    "no optimizer": without("optimizer"),
    "a line of metrics less": changed(lambda c: {**c, "metrics": c["metrics"][:-1]}),
    "metrics of something else": put("metrics", value=[{"epoch": 7}, "text"]),
    "metrics that are a text": put("metrics", value="text"),
    "times that are a number": put("times", value=3),
    "a list": changed(lambda _: [1, 2]),
    "a tensor": changed(lambda _: torch.zeros(3)),
    "code in a checkpoint": runs_code,
    "code in a plain pickle": plain_pickle,
    "code in torch's old format": old_torch_format,
}

#: Other runs, whose checkpoint is put in the place of this one's.
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

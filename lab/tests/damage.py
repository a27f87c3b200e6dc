"""What can be wrong with a file: one catalogue, for the tests of each room and for the torture."""

import os
import pickle
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Damage = Callable[[Path], None]


class Malicious:
    """Unpickled, it makes a folder."""

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


def instead(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        removed(path)
        make(path)

    return damage


def bound_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def sparse(path: Path) -> None:
    """It takes no room."""
    path.touch()
    os.truncate(path, 2**36)


SPECIAL: dict[str, Damage] = {
    "a FIFO": instead(os.mkfifo),
    "a link to /dev/zero": instead(lambda path: path.symlink_to("/dev/zero")),
    "a folder": instead(Path.mkdir),
    "a huge file": instead(sparse),
    "a full folder": instead(lambda path: (path / "in").mkdir(parents=True)),
    "a dangling link": instead(lambda path: path.symlink_to("/nonexistent/file")),
    "a link to itself": instead(lambda path: path.symlink_to(path.name)),
    "a socket": instead(bound_socket),
    "empty": instead(Path.touch),
    "random bytes": instead(lambda path: path.write_bytes(random.Random(1).randbytes(5000))),
}
#: Those that a reader would wait for, or that would fill the memory.
ENDLESS = ("a FIFO", "a link to /dev/zero", "a folder", "a huge file")

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


def cut(share: float) -> Damage:
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def flipped(seed: int) -> Damage:
    """One bit; a gap between the parts of the file has no meaning, and then nothing changes."""

    def damage(path: Path) -> None:
        data, chance = bytearray(path.read_bytes()), random.Random(seed)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)

    return damage


# --- intact checkpoints with other contents -------------------------------------------------------


def whole(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Something else instead of what is in the checkpoint."""
    return lambda path: torch.save(change(torch.load(path, weights_only=True)), path)


def at(*where: Any, change: Callable[[Any, Any], object]) -> Damage:
    """A change of the entry at this place, given what holds it and its key."""
    *path_to, last = where

    def changed(checkpoint: dict[str, Any]) -> dict[str, Any]:
        holder: Any = checkpoint
        for key in path_to:
            holder = holder[key]
        change(holder, last)
        return checkpoint

    return whole(changed)


def put(*where: Any, value: Any) -> Damage:
    return at(*where, change=lambda holder, key: holder.__setitem__(key, value))


def without(*where: Any) -> Damage:
    return at(*where, change=lambda holder, key: holder.__delitem__(key))


def renamed(*where: Any, to: Any) -> Damage:
    return at(*where, change=lambda holder, key: holder.__setitem__(to, holder.pop(key)))


def other_weights(change: Callable[[torch.Tensor], Any]) -> Damage:
    return whole(lambda c: {**c, "model": {n: change(value) for n, value in c["model"].items()}})


def past_the_end(c: dict[str, Any]) -> dict[str, Any]:
    epochs = range(1, 10)
    metrics = [{**c["metrics"][0], "epoch": e} for e in epochs]
    return {**c, "epoch": 9, "metrics": metrics,
            "times": [{"epoch": e, "seconds": 1.0} for e in epochs]}  # fmt: skip


def plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Malicious(marker_of(path))))


def with_code(path: Path, **how: Any) -> None:
    checkpoint = torch.load(path, weights_only=True)
    torch.save({**checkpoint, "more": Malicious(marker_of(path))}, path, **how)


STATE = ("optimizer", "state")
MOMENTS = (*STATE, 0)
GROUP = ("optimizer", "param_groups", 0)
CONTENTS: dict[str, Damage] = {
    **{
        f"epoch {value!r}": put("epoch", value=value)
        for value in (10**9, -1, 0, 1, 3, "2", 2.5, 2.0, None, True, [2])
    },
    "epochs past the end": whole(past_the_end),
    **{f"no {name}": without(name) for name in ("model", "optimizer", "metrics", "layout", "run")},
    "metrics in another order": whole(lambda c: {**c, "metrics": c["metrics"][::-1]}),
    "metrics of something else": put("metrics", value=[{"epoch": 7}, "text"]),
    "metrics that are a text": put("metrics", value="text"),
    "a line of metrics less": without("metrics", -1),
    "metrics without the metric": without("metrics", 0, "test_accuracy"),
    "a tensor among the metrics": put("metrics", 0, "lr", value=torch.ones(1)),
    "times that are a number": put("times", value=3),
    "a line of times less": without("times", -1),
    "times without seconds": without("times", 0, "seconds"),
    "a list": whole(lambda _: [1, 2]),
    "a number": whole(lambda _: 5),
    "a tensor": whole(lambda _: torch.zeros(3)),
    "a model that is a list": put("model", value=[]),
    "a weight less": whole(lambda c: {**c, "model": dict([*c["model"].items()][:-1])}),
    "weights of other shapes": other_weights(lambda _: torch.zeros(3)),
    "weights that are integers": other_weights(torch.Tensor.int),
    "weights that are numbers": other_weights(lambda _: 3.0),
    "an optimizer that is a number": put("optimizer", value=3),
    "no groups of the optimizer": put("optimizer", "param_groups", value=[]),
    "an optimizer without groups": without("optimizer", "param_groups"),
    "an optimizer with two groups": at(
        *GROUP, change=lambda groups, first: groups.append(groups[first])
    ),
    "a group without a parameter": without(*GROUP, "params", -1),
    "a group without a setting": without(*GROUP, "betas"),
    "other settings of the optimizer": put(*GROUP, "betas", value=(0.0, 0.0)),
    "a setting that is a tensor": put(*GROUP, "eps", value=torch.tensor(1e-8)),
    "no state of the optimizer": put(*STATE, value={}),
    "a state that is a list": put(*STATE, value=[]),
    "a state without a parameter": without(*STATE, 2),
    "a state of no parameter": renamed(*MOMENTS, to=99),
    "a state by words": renamed(*MOMENTS, to="a"),
    "a state without a moment": without(*MOMENTS, "exp_avg"),
    "a moment of another shape": put(*MOMENTS, "exp_avg", value=torch.zeros(3)),
    "a moment that is a text": put(*MOMENTS, "exp_avg", value="text"),
    **{
        f"a step of {value}": put(*MOMENTS, "step", value=torch.tensor(value))
        for value in (float("nan"), float("inf"), -1.0, 1.5, [1.0, 1.0])
    },
    "a layout that is a list": put("layout", value=[]),
    "an owner that is a text": put("run", value="x"),
    "an owner without a name": put("run", value={"config": "x", "data": "x"}),
    "code in a checkpoint": with_code,
    "code in a plain pickle": plain_pickle,
    "code in torch's old format": lambda path: with_code(
        path, _use_new_zipfile_serialization=False
    ),
}

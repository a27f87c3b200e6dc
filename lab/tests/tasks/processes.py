"""A run that is killed, and a run of two processes, beside the same run of one to its end."""

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from runs.commands import Server, fault, folder_in
from sgdf_lab.cli.main import main
from sgdf_lab.runs.run_folder import read_checkpoint
from sgdf_lab.training.loop import Trainer


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trained(words: Sequence[str], out: Path) -> Path:
    assert main([*words, "--out", str(out)]) == 0
    return folder_in(out)


def run_epoch(trainer: Trainer) -> dict[str, Any]:
    for _ in trainer.epoch():
        pass
    return trainer.metrics()


def assert_refused(
    words: Sequence[str], sentence: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sgdf train` answers in one line that has this sentence, before a run begins."""
    assert main(["train", *words, "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1, said
    assert not out.exists()


def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command in this process: its exit code, and all that it said on one line."""

    def command(*words: object) -> tuple[int, str]:
        code = main([*map(str, words)])
        said = capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    return command


def weights(folder: Path) -> Mapping[str, Tensor]:
    found: Mapping[str, Tensor] = read_checkpoint(folder / "last.pt", torch.device("cpu"))["model"]
    return found


def assert_resumes(
    server: Server, tmp_path: Path, words: Sequence[str], epoch: int,
    *, forget: Callable[[], object] = lambda: None, **request: Any,
) -> None:  # fmt: skip
    """Killed with SIGKILL while the checkpoint after `epoch` is replaced, it ends bit for bit."""
    straight, out = trained(words, tmp_path / "straight"), tmp_path / "killed"
    kill = fault("replace last.pt", "SIGKILL", epoch)
    ended = server.run(tuple(words), out, **request, **kill)
    assert ended.code == -signal.SIGKILL, ended.output
    assert not list(out.glob("*/result.json"))
    forget()
    again = trained(words, out)
    assert json.loads((again / "env.json").read_text())["from_epoch"] == epoch
    for path in (straight / "metrics.jsonl", *straight.glob("pictures/*")):
        assert (again / path.relative_to(straight)).read_bytes() == path.read_bytes(), path.name
    mine = weights(again)
    assert all(torch.equal(mine[name], value) for name, value in weights(straight).items())


def two_and_one(
    server: Server, tmp_path: Path, words: Sequence[str], said: str,
    *, more: Sequence[str] = (), meanwhile: Callable[[], object] = lambda: None, **request: Any,
) -> tuple[Path, Path]:  # fmt: skip
    """The folders of a run of two processes, which print once, and of one; `more` is for two."""
    two = server.start_two((*words, *more), tmp_path / "two", **request)
    meanwhile()
    one = trained(words, tmp_path / "one")
    ended = two.wait()
    assert ended.code == 0, ended.output
    assert ended.output.count(said) == 1, "only one of them prints"
    return folder_in(tmp_path / "two"), one


def assert_same_lines(ours: Path, alone: Path, rel: float) -> None:
    for mine, other in zip(lines(ours), lines(alone), strict=True):
        assert mine.keys() == other.keys()
        for name, value in other.items():
            assert mine[name] == (value and pytest.approx(value, rel=rel)), name


def assert_same_steps(begun: Mapping[str, Tensor], ours: Path, alone: Path) -> None:
    """The weights have moved by the same."""
    mine = weights(ours)
    for name, end in weights(alone).items():
        moved = (end - begun[name]).norm()
        assert (mine[name] - end).norm() <= 1e-3 * moved + 1e-6, name

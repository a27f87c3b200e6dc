"""The script that reproduces a row of the README: it runs, compares fairly, and is short."""

import ast
import json
import sys
from pathlib import Path

import pytest
import torch

from examples import against_adamw

pytestmark = pytest.mark.usefixtures("one_thread")
SCRIPT = Path(against_adamw.__file__)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WIDTH": 32, "LAYERS": 1, "BATCH": 4}.items():
        monkeypatch.setattr(against_adamw, name, value)


@pytest.mark.usefixtures("small")
def test_both_learn_and_the_difference_is_printed(tmp_path: Path, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a filter in front of the step. " * 300)
    given = ["--text", str(text), "--steps", "36", "--seeds", "1", "2"]
    runs = against_adamw.main(against_adamw.arguments(given))
    assert len(runs) == 2
    for run in runs:
        for losses in run.values():
            assert losses[36] < losses[6] - 0.5
    shown = capsys.readouterr().out
    ours, theirs = (sum(run[n][36] for run in runs) / 2 for n in (against_adamw.OURS, "AdamW"))
    assert f"AdamW {theirs:.3f}, FilterMuon* {ours:.3f}" in shown
    assert f"difference {ours - theirs:+.3f}" in shown


@pytest.mark.usefixtures("small")
def test_both_have_the_same_start_and_batches(monkeypatch, tmp_path: Path, capsys) -> None:
    """So with one step instead of both, all losses are the same."""
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(256)) * 20)
    monkeypatch.setitem(against_adamw.OPTIMIZERS, against_adamw.OURS, against_adamw.adamw)
    given = against_adamw.arguments(["--text", str(text), "--steps", "6"])
    (run,) = against_adamw.main(given)
    assert run["AdamW"] == run[against_adamw.OURS]
    assert "difference +0.000" in capsys.readouterr().out


def test_the_model_is_causal() -> None:
    model = against_adamw.GPT()
    tokens = torch.randint(256, (2, against_adamw.CONTEXT))
    changed = tokens.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40], after[:, 40])
    assert sum(p.numel() for p in model.parameters()) == 820_352  # as gpt-mini


def test_a_short_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("short")
    with pytest.raises(SystemExit, match="too short"):
        against_adamw.main(against_adamw.arguments(["--text", str(tmp_path / "text.txt")]))


@pytest.mark.parametrize("label", ["AdamW", "FilterMuon, eigenbasis"])
def test_the_settings_are_those_of_the_row(label: str) -> None:
    folder = SCRIPT.parents[1] / "results" / "evidence" / "contest-gpt-encyclopedia"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    (chosen,) = (c["chosen"]["settings"] for c in summary["contestants"] if c["label"] == label)
    name = label.replace("FilterMuon, eigenbasis", against_adamw.OURS)
    groups = against_adamw.OPTIMIZERS[name](against_adamw.GPT()).param_groups
    decayed = next(group for group in groups if group["weight_decay"])
    given = {name: decayed[name] for name in chosen if name in decayed}
    given |= {"betas": [*decayed["betas"]], "param_groups": True}
    if "aux_lr" in chosen:
        given["aux_lr"] = next(g["lr"] for g in groups if not g["matrices"])
    assert given == chosen


@pytest.mark.parametrize("name", against_adamw.OPTIMIZERS)
def test_only_matrices_between_embedding_and_head_decay(name: str) -> None:
    groups = against_adamw.OPTIMIZERS[name](against_adamw.GPT()).param_groups
    decayed = sum(p.numel() for g in groups if g["weight_decay"] for p in g["params"])
    assert decayed == 4 * 12 * against_adamw.WIDTH**2
    if name == against_adamw.OURS:
        assert decayed == sum(p.numel() for g in groups if g["matrices"] for p in g["params"])
        assert {g["eigenbasis"] for g in groups if g["matrices"]} == {True}


def test_it_needs_torch_and_sgdf_only_and_is_short() -> None:
    source = SCRIPT.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported - set(sys.stdlib_module_names) == {"torch", "sgdf"}

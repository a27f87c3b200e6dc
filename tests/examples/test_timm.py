"""timm: the registered names, what timm passes to them, and its train script's command line."""

import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from sgdf import SGDF, FilterAdam, FilterAdamW
from sgdf.integrations import timm as integration

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = {"sgdf": SGDF, "filteradam": FilterAdam, "filteradamw": FilterAdamW}

# What timm's train script does with its arguments.
SCRIPT = """
import argparse
import timm.optim, torch

parser = argparse.ArgumentParser()
parser.add_argument("--opt", default="sgd")
parser.add_argument("--opt-eps", type=float)
parser.add_argument("--opt-betas", type=float, nargs="+")
parser.add_argument("--lr", type=float)
parser.add_argument("--weight-decay", type=float, default=2e-5)
parser.add_argument("--momentum", type=float, default=0.9)
args = parser.parse_args()
model = torch.nn.Linear(4, 2)
optimizer = timm.optim.create_optimizer_v2(model, **timm.optim.optimizer_kwargs(cfg=args))
print(type(optimizer).__name__, optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"])
"""


@pytest.fixture
def timm() -> ModuleType:
    pytest.importorskip("timm")
    integration.register()
    return importlib.import_module("timm")


@pytest.mark.parametrize(
    ("opt", "lr"), [("sgdf", 0.5), ("filteradam", 3e-3), ("filteradamw", 3e-3)]
)
def test_the_script_trains(timm, opt: str, lr: float) -> None:
    losses = importlib.import_module("examples.timm_optimizer").main(opt, lr)
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_names_settings_and_groups(timm, name: str, kind: type) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = timm.optim.create_optimizer_v2(
        model, opt=name, lr=0.1, weight_decay=0.02, momentum=0.9, betas=(0.8, 0.99), eps=1e-6
    )
    assert type(optimizer) is kind
    by_decay = {group["weight_decay"]: group for group in optimizer.param_groups}
    assert {decay: len(group["params"]) for decay, group in by_decay.items()} == {0.0: 3, 0.02: 1}
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.1, (0.8, 0.99), 1e-6)
        assert "momentum" not in group


def test_layer_decay_and_lookahead(timm) -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=16, depth=2, num_heads=2, num_classes=2
    )
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="lookahead_sgdf", lr=0.1, weight_decay=0.02, layer_decay=0.5
    )
    assert type(optimizer).__name__ == "Lookahead"
    assert {group["lr_scale"] for group in optimizer.param_groups} == {1.0, 0.5, 0.25, 0.125}
    before = model.head.weight.detach().clone()
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.head.weight)


def test_a_second_registration_is_silent(timm, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        integration.register()
    assert not caplog.records
    assert set(NAMES) <= set(timm.optim.list_optimizers())


def test_a_train_script_runs_behind_the_module(timm, tmp_path: Path, monkeypatch, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    integration.main([str(script), "--opt", "sgdf", "--lr", "0.25", "--opt-betas", "0.8", "0.9"])
    assert capsys.readouterr().out == "SGDF 0.25 [0.8, 0.9]\n"
    integration.main([str(script), "--opt", "filteradamw", "--lr", "0.25"])
    assert capsys.readouterr().out == "FilterAdamW 0.25 (0.9, 0.999)\n"


def test_without_a_script_the_module_says_how_it_is_used() -> None:
    with pytest.raises(SystemExit, match=r"usage: python -m sgdf.integrations.timm train\.py"):
        integration.main(["--opt", "sgdf"])

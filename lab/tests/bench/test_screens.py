"""What the command measures, how often, and what it shows: never how fast a step is."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

from sgdf_lab.bench import run as command
from sgdf_lab.bench.contestants import LISTS, elements
from sgdf_lab.bench.measure import Budget, TimedSeries

RECORD = Path(__file__).parents[3] / "results" / "bench-step-cuda.json"


@pytest.mark.parametrize("width", [80, 120, command.FULL_WIDTH])
def test_no_number_is_cut(width):
    measured = next(iter(json.loads(RECORD.read_text())["lists"].values()))
    console = Console(file=io.StringIO(), width=width, highlight=False)
    command.show_parameter_list(measured, "cuda", console)
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for row in measured["rows"]:
        assert set(command.cells_of(row, None)[3:]) <= set(text.split()), row["optimizer"]
    if width == command.FULL_WIDTH:
        assert any(all(c.title in line for c in command.COLUMNS) for line in text.splitlines())


def test_a_log_says_what_is_measured(capsys):
    with command.shown_progress(command.open_console(), "tiny", 2) as tick:
        tick("warming up SGD fused")
    assert capsys.readouterr().err == "tiny: warming up SGD fused\n"


@pytest.mark.parametrize(
    ("name", "tensors", "count"),
    [
        ("one-tensor", 1, 25_000_000),
        ("resnet18", 62, 11_689_512),
        ("resnet50", 161, 25_557_032),
        ("vit-l", 296, 304_326_632),
        ("gpt", 292, 1_315_723_264),
    ],
)
def test_lists_have_the_tensors_of_the_networks(name, tensors, count):
    shapes = LISTS[name].shapes()
    assert len(shapes) == tensors
    assert elements(shapes) == count


def test_lists_are_in_the_order_of_the_networks():
    resnet = LISTS["resnet50"].shapes()
    assert resnet[:3] == [(64, 3, 7, 7), (64,), (64,)]
    assert resnet[9:15] == [(256, 64, 1, 1), (256,), (256,), (256, 64, 1, 1), (256,), (256,)]
    assert resnet[-2:] == [(1000, 2048), (1000,)]
    block = torch.nn.TransformerEncoderLayer(1024, 16, 4096)
    ours = LISTS["vit-l"].shapes()[4:16]
    assert sorted(ours) == sorted(tuple(p.shape) for p in block.parameters())


def test_slow_steps_are_timed_less_often():
    series = TimedSeries(lambda: None, batch=1, rounds=3)
    turns = [turn for turn in range(30) if series.takes_part(turn, 30)]
    assert turns == [9, 19, 29]
    slow = TimedSeries.plan(lambda: None, Budget("cpu", 30, 1e-9, math.inf))
    assert (slow.rounds, slow.batch > 1) == (3, True)


def test_little_time_in_all_leaves_few_timings(run):
    options = ("--repeats", "5", "--seconds", "60")
    rows = run(*options, "--total", "1e-6", only=["sgd-fused", "adamw-fused"])
    assert [len(r["timings"]["ms"]) for r in rows["lists"]["tiny"]["rows"]] == [3, 3]
    assert rows["settings"]["total"] == 1e-6
    rows = run(*options, only=["sgd-fused"])
    assert [len(r["timings"]["ms"]) for r in rows["lists"]["tiny"]["rows"]] == [5]

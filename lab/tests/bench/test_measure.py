"""What is measured of a contestant, and that one failure does not stop the others."""

import math
from dataclasses import replace

import pytest
import torch

from sgdf_lab.bench import contestants, measure
from sgdf_lab.bench.contestants import tiny
from sgdf_lab.bench.measure import Budget, Timing, random_parameters


def test_bytes_of_state_and_bytes_moved(run, eager):
    rows = {row["name"]: row for row in run()["lists"]["tiny"]["rows"]}
    assert list(rows) == eager
    counted = {name: (row["state_bytes"], row["moved_bytes"]) for name, row in rows.items()}
    assert counted == {
        "sgd-fused": (4, 20),
        "sgd-foreach": (4, 20),
        "adamw-fused": (8, 28),
        "sgdf-loop": (8, 28),
        "sgdf-foreach": (8, 28),
        "filteradam-foreach": (12, 36),
    }


@pytest.mark.parametrize(
    ("name", "state", "moved"),
    [
        ("sgdf-fused-constant", 4, 20),
        ("sgdf-fused-int8-state", 2 + 8 / 256, 16 + 16 / 256),
        ("filteradam-fused-int8-state", 3 + 12 / 256, 18 + 24 / 256),
        ("filteradamw-fused-derived", 8, 28),
        ("filteradamw-fused-derived-int8-state", 2 + 8 / 256, 16 + 16 / 256),
        ("filteradamw-fused-constant", 8, 28),
        ("wienerfilter-fused", 8, 24),
        ("sgdf-fused-bf16", 8, 22),
        ("filteradamw-fused-derived-bf16-int8-state-random", 2 + 8 / 256, 10 + 16 / 256),
    ],
)
def test_bytes_of_the_fused_rows(name, state, moved):
    (fused,) = [c for c in contestants.CONTESTANTS if c.name == name]
    # The same state on a path that needs nothing compiled. Rows of 256 have one scale each.
    eager = replace(fused, settings={**fused.settings, "fused": False})
    params = random_parameters([(64, 256)], getattr(torch, fused.dtype), "cpu")
    cost, _, _ = measure.prepare(eager, params, Budget("cpu", 1, 0.01, math.inf))
    assert (cost.state_bytes, cost.moved_bytes) == (state, moved)
    assert cost.implementation != "fused"


def test_bfloat16_parameters_move_half(contestant):
    budget = Budget("cpu", 1, 0.1, math.inf)
    params = random_parameters([(8, 8)], torch.bfloat16, "cpu")
    cost, series, _ = measure.prepare(contestant(torch.optim.AdamW, foreach=True), params, budget)
    assert (cost.state_bytes, cost.moved_bytes) == (4, 14)
    series.timings = [Timing(2.0, 2.0, 2.0)] * 3
    cost.summarize(series, 10**9, copy_gb_per_s=14_000.0)
    assert (cost.ms, cost.ms_iqr, cost.gb_per_s, cost.of_copy) == (2.0, 0.0, 7000.0, 0.5)


def test_the_parameters_do_not_move(run, monkeypatch):
    created = []
    real = measure.random_parameters
    monkeypatch.setattr(
        measure, "random_parameters", lambda *a: created.append(real(*a)) or created[-1]
    )
    run()
    again = real(tiny(), torch.float32, "cpu")
    for p, fresh in zip(created[0], again, strict=True):
        torch.testing.assert_close(p, fresh, rtol=0, atol=1e-9)
        assert torch.equal(p.grad, fresh.grad)


def test_a_failure_is_a_row_with_the_reason(run, eager, contestant, monkeypatch, capsys):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no kernel [for] this\nand pages of source")

    others = [c for c in contestants.CONTESTANTS if c.name in eager]
    monkeypatch.setattr(contestants, "CONTESTANTS", (contestant(Broken, "broken"), *others))
    rows = run(only=["broken", *eager])["lists"]["tiny"]["rows"]
    assert [row["name"] for row in rows] == ["broken", *eager]
    assert rows[0]["error"] == "RuntimeError: no kernel [for] this"
    assert rows[0]["ms"] is None
    assert all(row["ms"] for row in rows[1:])
    shown = capsys.readouterr().out
    assert "failed (1)" in shown
    assert "(1) RuntimeError: no kernel [for] this" in shown


def test_out_of_memory_in_a_group_is_tried_again_alone(run, eager, contestant, monkeypatch):
    created = []

    class Greedy(torch.optim.SGD):
        def __init__(self, *args, **settings):
            created.append(self)
            if len(created) == 1:
                raise torch.OutOfMemoryError("tried to allocate 20 GiB")
            super().__init__(*args, **settings)

    others = [c for c in contestants.CONTESTANTS if c.name in eager]
    monkeypatch.setattr(contestants, "CONTESTANTS", (contestant(Greedy, "greedy"), *others))
    rows = run(only=["greedy", "sgd-fused"])["lists"]["tiny"]["rows"]
    assert [(row["error"], row["together"]) for row in rows] == [(None, 1), (None, 0)]


def test_a_package_that_is_not_installed_is_a_note(run, monkeypatch, capsys):
    missing = contestants.Contestant("other-adam", "no_such_package.optim.Adam", "other", {}, 2)
    installed = contestants.Contestant("torch-adam", "torch.optim.Adam", "by its name", {}, 8)
    monkeypatch.setattr(contestants, "CONTESTANTS", (missing, installed))
    monkeypatch.setattr(contestants.Contestant, "runs_on", lambda *_: True)
    record = run(only=None, lists=("tiny", "tiny"))
    (row,) = record["lists"]["tiny"]["rows"]
    assert (row["optimizer"], row["path"], row["error"]) == ("Adam", "by its name", None)
    assert row["state_bytes"] == 8
    assert record["skipped"] == {"other-adam": "no_such_package is not installed"}
    assert "other-adam skipped: no_such_package is not installed" in capsys.readouterr().out

"""The engine "stack": its runs are those of any other engine."""

import dataclasses
import json

import pytest
import torch

from sgdf_lab import train_runs
from sgdf_lab.optimizers.pipeline import STEPS
from sgdf_lab.runs.config import make
from sgdf_lab.runs.session import RunContext
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import stacked
from sgdf_lab.sweeps.execute import Engine, run_all
from sgdf_lab.training.stack import batched_qr

TEXT = {
    "task": "text",
    "data": "synthetic",
    "model": "gpt-tiny",
    "overrides": {
        "context": 16, "batch": 2, "steps": 16, "eval_every": 8, "eval_tokens": 64,
        "test_tokens": 128, "schedule": "cosine", "warmup": 0.1, "clip": 1.0,
    },
}  # fmt: skip
IMAGES = {
    "task": "digits",
    "epochs": 1,
    "overrides": {"batch": 256, "validation": 100, "schedule": "cosine"},
}
TWO_RATES = [{"lr": 0.003}, {"lr": 0.01}]
CASES = {
    "adamw": (TEXT, "adamw", [{"lr": 0.003, "weight_decay": 0.1}, {"lr": 0.01, "betas": [0.8, 0.9]}]),  # noqa: E501
    "nadamw": (TEXT, "nadamw", [{"lr": 0.003}, {"lr": 0.01, "betas": [0.8, 0.9]}]),
    "filter-adamw": (TEXT, "filter-adamw", [{"lr": 0.003}, {"lr": 0.01, "betas": [0.8, 0.9]}]),
    "filter-adamw without corrections": (TEXT, "filter-adamw", [
        {"lr": 0.003, "bias_correction": False, "second_moment": "fluctuation"},
        {"lr": 0.01, "bias_correction": False, "correction": False, "gain_power": 0.5}]),
    "muon": (TEXT, "muon", [{"lr": 0.003, "adamw_lr": 0.001}, {"lr": 0.01, "momentum": 0.9}]),
    "filter-muon": (TEXT, "filter-muon", [{"lr": 0.003, "aux_lr": 0.001}, {"lr": 0.01}]),
    "filter-muon-eigen": (TEXT, "filter-muon-eigen", [{"lr": 0.003}, {"lr": 0.01, "betas": [0.8, 0.9]}]),  # noqa: E501
    "filter-soap": (TEXT, "filter-soap", [{"lr": 0.001}, {"lr": 0.003, "gain_scale": 0.2}]),
    "soap": (TEXT, "soap", [{"lr": 0.003, "aux_lr": 0.001}, {"lr": 0.01, "aux_lr": 0.003}]),
    **{f"pipeline {step}": (TEXT, "pipeline", [{"lr": r, "step": step, "gain_scale": 2.0,
                            "gain_power": 1.0, "slow_weight": 0.5} for r in (0.001, 0.003)])
       for step in STEPS},
    "images": (IMAGES, "adamw", TWO_RATES),
    "batch norm": ({**IMAGES, "model": "cnn-bn"}, "adamw", TWO_RATES),
}  # fmt: skip
#: Newton-Schulz may be in bfloat16 there; SOAP's other parameters leave out their first step; and
#: where a gradient of few tokens has no rank, the eigenvectors are anybody's.
TOLERANCE = {
    **dict.fromkeys(("muon", "filter-muon", "filter-muon-eigen", "filter-soap"), 0.03),
    "soap": 0.06,
    **dict.fromkeys(("pipeline eigen", "pipeline eigen-orthogonal"), 0.03),
}


def configs_of(case):
    base, optimizer, cells = CASES[case]
    base = {**base, "optimizer": optimizer}
    options = base.pop("overrides")
    return [
        make(**base, seed=seed, overrides={**options, **cell})
        for seed, cell in ((0, cells[0]), (0, cells[1]), (1, cells[0]))
    ]


def context_in(folder, command=""):
    return RunContext(folder, torch.device("cpu"), compile=False, command=command)


@pytest.mark.parametrize("case", CASES)
def test_a_stack_trains_the_runs_of_the_local_engine(case, tmp_path):
    configs = configs_of(case)
    wanted = train_runs(configs, out=tmp_path / "local", device="cpu", checkpoints=False)
    results = run_all(configs, context_in(tmp_path / "stack"), Engine("stack"))
    for config, own, other in zip(configs, results, wanted, strict=True):
        assert own.keys() == other.keys()
        lines, others = (
            [json.loads(line) for line in (tmp_path / k / config.name / "metrics.jsonl").open()]
            for k in ("stack", "local")
        )
        assert [line.keys() for line in lines] == [line.keys() for line in others]
        loss = [key for key in lines[0] if key.endswith("loss")]
        for line, other_line in zip(lines, others, strict=True):
            for key in loss:
                assert line[key] == pytest.approx(other_line[key], rel=TOLERANCE.get(case, 2e-3))
            assert line["lr"] == pytest.approx(other_line["lr"])


def test_filters_of_all_kinds_are_in_one_stack(tmp_path):
    """A constant gain beside 2K, one average beside two: the runs are those of separate stacks."""
    base, *_ = CASES["pipeline adam"]
    base = {**base, "optimizer": "pipeline"}
    options = base.pop("overrides")
    rows = [{"gain_scale": 0.1}, {"gain_scale": 2.0, "gain_power": 1.0}, {"slow_weight": 0.5},
            {"betas": [0.0, 0.95]}, {}]  # fmt: skip
    for step in ("adam", "orthogonal"):
        configs = [make(**base, overrides={**options, "step": step, **row}) for row in rows]
        notes = []
        both = stacked.run(configs, context_in(tmp_path / f"together {step}"), 9, notes.append)
        together = [result["final_val_loss"] for _, result in both]
        assert all(note.startswith("stack of 5 runs") for note in notes)
        apart = [
            result["final_val_loss"]
            for config in configs
            for _, result in stacked.run([config], context_in(tmp_path / step), 9, notes.append)
        ]
        assert together == pytest.approx(apart, rel=2e-3)
        assert len({round(value, 4) for value in apart}) == len(rows)


def test_stacks_are_of_one_kind_and_of_a_limited_size(tmp_path):
    """Two steps of the pipeline, in stacks of two: the third of each kind is in one of its own."""
    notes = []
    configs = [*configs_of("pipeline sgd"), *configs_of("pipeline adam")]
    results = {
        config.name: result
        for config, result in stacked.run(configs, context_in(tmp_path), 2, notes.append)
    }
    assert len(results) == 6
    assert {note.split(" runs")[0] for note in notes} == {"stack of 2", "stack of 1"}


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path):
    configs = configs_of("pipeline sgd")[:2]
    wild = dataclasses.replace(configs[1], settings={**configs[1].settings, "lr": 1e38})
    alone = run_all([configs[0]], context_in(tmp_path / "alone"), Engine("stack"))
    both = run_all([configs[0], wild], context_in(tmp_path / "both"), Engine("stack"))
    assert [result["status"] for result in both] == ["finished", "diverged"]
    assert both[0]["final_val_loss"] == pytest.approx(alone[0]["final_val_loss"], rel=1e-4)


def test_what_a_stack_cannot_train_is_named(tmp_path):
    base, *_ = CASES["adamw"]
    options = base["overrides"]
    with pytest.raises(UserError, match="SGD"):
        run_all([make("digits", optimizer="sgd", epochs=1)], context_in(tmp_path), Engine("stack"))
    for setting in ({"maximize": True}, {"state_dtype": "bfloat16"}):
        config = make("digits", optimizer="filter-adamw", epochs=1, overrides=setting)
        with pytest.raises(UserError, match=next(iter(setting))):
            run_all([config], context_in(tmp_path), Engine("stack"))
    other = make("text", model="gpt-tiny", data="synthetic", precision="bf16", overrides=options)
    with pytest.raises(UserError, match="precision"):
        run_all([other], context_in(tmp_path), Engine("stack"))


@pytest.mark.parametrize("condition", [1.0, 1e6, 1e20])
def test_the_batched_qr_is_torchs_up_to_signs(condition):
    torch.manual_seed(0)
    scales = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), 24)
    a = torch.randn(5, 24, 24) * scales
    q, _ = batched_qr(a)
    wanted = torch.linalg.qr(a)[0]
    one = torch.eye(24)
    torch.testing.assert_close(q.mT @ q, one.expand_as(q), atol=1e-5, rtol=0)
    torch.testing.assert_close((q * wanted).sum(-2).abs(), torch.ones(5, 24), atol=1e-3, rtol=0)


def test_the_batched_qr_of_dependent_columns_is_orthogonal():
    a = torch.randn(3, 8, 8)
    a[:, :, 5] = a[:, :, 2]
    a[1, :, 0] = 0
    a[2] = float("nan")
    q, _ = batched_qr(a)
    torch.testing.assert_close(q.mT @ q, torch.eye(8).expand_as(q), atol=1e-4, rtol=0)

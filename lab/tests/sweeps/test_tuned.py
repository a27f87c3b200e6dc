"""Trials in declared spaces, and seeds of the best setting."""

import dataclasses
import json
import math
import tomllib
from pathlib import Path

import pytest

from report import made
from sgdf_lab import optimizers
from sgdf_lab.cli.main import main
from sgdf_lab.registry.optimizers import OPTIMIZERS
from sgdf_lab.registry.spaces import Range
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import contestants, plan
from sgdf_lab.sweeps.plan import Tuned, sweep_from_file, sweep_from_table
from sgdf_lab.sweeps.presets import sweep_from_preset

SPACES = {name: row.space for name, row in OPTIMIZERS.items() if row.space}
DIGITS = {"task": "digits", "epochs": 1, "trials": 4, "seeds": [1, 2], "set": {"validation": 200}}
CELLS = [{"optimizer": "sgdf", "gain_scale": 1.0}, {"optimizer": "sgd-nesterov"}]
EVIDENCE = sorted((Path(__file__).parents[3] / "benchmarks" / "evidence").rglob("*.toml"))


def test_everyone_gets_as_many_trials_at_the_same_parts_of_the_ranges():
    sweep = sweep_from_table("t", {**DIGITS, "cells": CELLS})
    assert sweep.seeds == (1, 2)
    ours, theirs = sweep.trials
    assert sweep.configs[:3] == (ours[0], theirs[0], ours[1])
    assert (len(ours), len(theirs)) == (4, 4)
    assert {c.optimizer for c in ours} == {"sgdf"}
    assert {c.seed for c in sweep.configs} == {0}
    assert {c.settings["gain_scale"] for c in ours} == {1.0}
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.settings["betas"][0] == other.settings["momentum"]
        parts = [
            math.log(c.settings["lr"] / r.low) / math.log(r.high / r.low)
            for c, r in ((mine, SPACES["sgdf"]["lr"]), (other, SPACES["sgd"]["lr"]))
        ]
        assert parts[0] == pytest.approx(parts[1], abs=1e-3)


def test_more_trials_begin_with_the_same_ones():
    few, many = (sweep_from_table("t", {**DIGITS, "trials": n, "cells": CELLS}) for n in (3, 20))
    assert few.configs == many.configs[:6]
    rates = sorted(c.lr for c in many.configs[:32:2])  # a power of two: one in each sixteenth
    low, high = SPACES["sgdf"]["lr"].low, SPACES["sgdf"]["lr"].high
    parts = [math.log(rate / low) / math.log(high / low) for rate in rates]
    assert [int(16 * part) for part in parts] == list(range(16))


def test_every_matrix_step_searches_the_same_rates_also_of_what_is_no_matrix():
    """Else the ranges would decide a comparison. A plan can have others: recorded ones do."""
    rates = {"muon": "adamw_lr", "soap": "aux_lr", "filter-muon": "aux_lr",
             "filter-muon-eigen": "aux_lr", "filter-soap": "aux_lr"}  # fmt: skip
    assert {SPACES[name][rate] for name, rate in rates.items()} == {Range(3e-4, 3e-2)}
    assert {SPACES[name]["lr"] for name in rates} == {Range(3e-4, 3e-2)}
    cells = {"cells": [{"optimizer": "muon"}, {"optimizer": "filter-muon"}]}
    tuned_, without = (
        sweep_from_table("t", {**DIGITS, **cells, "space": {"muon": space}})
        for space in ({}, {"adamw_lr": "default"})
    )
    assert len({c.settings["adamw_lr"] for c in tuned_.trials[0]}) == 4
    for c, one in zip(without.trials[0], tuned_.trials[0], strict=True):
        assert c.settings == {k: v for k, v in one.settings.items() if k != "adamw_lr"}
    assert without.trials[1] == tuned_.trials[1]


def test_the_ends_of_a_range():
    assert [Range(1e-4, 1e-2).at(part) for part in (0, 0.5, 1)] == [1e-4, 1e-3, 1e-2]
    memory = Range(0.8, 0.98, "memory")
    assert [memory.at(part) for part in (0, 1)] == pytest.approx([0.8, 0.98])
    assert memory.at(0.5) == pytest.approx(1 - math.sqrt(0.2 * 0.02), abs=1e-4)


def trials_of(cell, count, **given):
    return plan.trials_of(cell, count, plan.space_of(cell["optimizer"], cell, given))


@pytest.mark.parametrize("name", [*OPTIMIZERS, "wiener-lion"])
def test_spaces_have_settings_that_the_optimizer_takes(name):
    (cell, *_) = trials_of({"optimizer": name}, 2)
    searched = len(plan.space_of(name, {}, {}))
    # Of the pipeline every plan names what it searches.
    assert searched >= 3 or name in ("fromage", "pipeline"), "more than its rate, if it has more"
    settings = {k: v for k, v in cell.items() if k != "optimizer"}
    checked = optimizers.find(name).checked(settings)
    assert checked.keys() == settings.keys()


OWN = """
import torch

class Mine(torch.optim.SGD):
    def __init__(self, params, lr=0.1, betas=(0.9, 0.99), weight_decay=0.0, nesterov=False,
                 warm: int = 1, tilt=0.0, mode="a"):
        super().__init__(params, lr, betas[0], weight_decay=weight_decay)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}.Mine"


def test_any_setting_of_ones_own_optimizer_is_searched(mine):
    given = {
        "weight_decay": [1e-4, 1e-2],
        "beta1": [0.8, 0.98],
        "warm": [1, 10],
        "tilt": [-1.0, 1.0],
        "mode": {"choices": ["a", "b"]},
        "nesterov": {"choices": [True, False]},
    }
    table = {**DIGITS, "trials": 16, "space": {mine: given}, "cells": [{"optimizer": mine}]}
    sweep = sweep_from_table("t", table)
    found = [config.settings for config in sweep.configs]
    assert all(s["betas"][1] == 0.99 and 0.8 <= s["betas"][0] <= 0.98 for s in found)
    for name, low, high in (("weight_decay", 1e-4, 1e-2), ("tilt", -1, 1), ("lr", 1e-4, 1e-2)):
        values = sorted(s[name] for s in found)
        assert low <= values[0] < values[-1] <= high
        middle = (low + high) / 2 if name == "tilt" else math.sqrt(low * high)
        assert sum(value < middle for value in values) == 8, "half of them in the lower half"
    assert {type(s["warm"]) for s in found} == {int}
    assert {s["mode"] for s in found} == {"a", "b"}
    assert {s["nesterov"] for s in found} == {True, False}
    assert plan.lines_of_search(sweep) == [
        f"{mine} searches lr 0.0001 to 0.01; weight_decay 0.0001 to 0.01; beta1 0.8 to 0.98, log "
        "of 1 - it; warm 1 to 10; tilt -1 to 1, linear; mode a or b; nesterov True or False"
    ]


def test_who_searches_more_settings_is_named(mine):
    cells = [{"optimizer": mine}, {"optimizer": "adamw"}]
    *_, warning = plan.lines_of_search(sweep_from_table("t", {**DIGITS, "cells": cells}))
    assert warning.startswith("warning: the contestants search 1 to 4 settings")


def test_a_constant_gain_follows_beta1():
    cells = trials_of({"optimizer": "filter-adamw", "gain_share": 0.5}, 8)
    for cell in cells:
        assert cell["gain_power"] == 0
        assert cell["gain_scale"] == pytest.approx((1 - cell["betas"][0]) / 2, rel=1e-3)
        assert "gain_share" not in cell
    assert len({cell["gain_scale"] for cell in cells}) == 8
    with pytest.raises(UserError, match="gain_share is a number of at least 0, not -1"):
        trials_of({"optimizer": "filter-adamw", "gain_share": -1}, 2)
    with pytest.raises(UserError, match="gain_share is a share of 1 - beta1: give betas"):
        trials_of({"optimizer": "sgd", "gain_share": 0.5}, 2)


def test_finalists_then_the_best_with_all_seeds_and_again_trains_nothing(tmp_path, capsys):
    file, out = tmp_path / "t.toml", tmp_path / "runs"
    file.write_text(
        'task = "digits"\nepochs = 1\ntrials = 3\nchoice_seeds = [5, 6]\n'
        "seeds = [4, 7]\n[set]\nvalidation = 200\nbatch = 256\n"
        '[grid]\noptimizer = ["sgdf", "adamw"]\n'
    )
    words = [
        "sweep",
        str(file),
        "--finalists",
        "2",
        "--jobs",
        "1",
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    assert main(words) == 0
    measured = [
        (json.loads(path.read_text()), json.loads((path.parent / "metrics.jsonl").read_text()))
        for path in out.glob("digits-*/config.json")
    ]
    for name in ("sgdf", "adamw"):
        runs = {
            (config["seed"], config["settings"]["lr"]): line["validation_accuracy"]
            for config, line in measured
            if config["optimizer"] == name
        }
        trials = {lr: value for (seed, lr), value in runs.items() if seed == 0}
        finalists = {lr for seed, lr in runs if seed == 5}
        means = {lr: (runs[5, lr] + runs[6, lr]) / 2 for lr in finalists}
        assert (len(trials), len(finalists)) == (3, 2)
        assert sorted(trials.values())[-2:] == sorted(trials[lr] for lr in finalists)
        chosen = {lr for seed, lr in runs if seed in (4, 7)}
        assert len(chosen) == 1
        assert means[chosen.pop()] == max(means.values())
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/last.pt")}
    assert len(times) == 2 * (3 + 2 * 2 + 2)
    capsys.readouterr()
    assert main(words) == 0
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("*/last.pt")}
    printed = capsys.readouterr().out
    assert "the best 2 of each" in printed
    assert "the best setting of each" in printed


def trial(lr):
    return configs.make("text", data="synthetic", overrides={"lr": lr, "steps": 100})


def ended(out, config, value):
    """A run on disk that ended with this validation metric, or diverged if it is None."""
    key = "val_loss" if config.task == "text" else "validation_accuracy"
    status = "diverged" if value is None else "finished"
    measured = {"val_loss": 9.0, "bits_per_byte": 1.0, key: 9.0 if value is None else value}
    made.run(out, config, [50.0], status=status, extra=measured)


@pytest.fixture
def every_run_has_ended(monkeypatch):
    monkeypatch.setattr(contestants, "read_checked", lambda folder, config: {"status": "finished"})


@pytest.mark.usefixtures("every_run_has_ended")
def test_the_choice_leaves_out_what_did_not_finish(tmp_path):
    trials = [trial(lr) for lr in (1.0, 2.0, 3.0)]
    sweep = Tuned("t", "t", (tuple(trials),), seeds=(1,))
    for config, value in zip(trials, (2.5, None, 2.4), strict=True):
        ended(tmp_path / "some", config, value)
        ended(tmp_path / "none", config, None)
    (best,) = contestants.best_of(sweep, tmp_path / "some").configs
    assert best.lr == 3, "a loss: lower is better"
    with pytest.raises(UserError, match="no trial of sgdf on text has finished"):
        contestants.best_of(sweep, tmp_path / "none")


def choice_among(out, measured):
    """The chosen learning rate, given the losses of seeds 0 (the trials), 8 and 9."""
    trials = [trial(lr) for lr in measured]
    sweep = Tuned("t", "t", (tuple(trials),), seeds=(1,), finalists=2, choice_seeds=(8, 9))
    for config in trials:
        for seed, value in zip((0, 8, 9), measured[config.lr], strict=True):
            ended(out, dataclasses.replace(config, seed=seed), value)
    finals = [(config.lr, config.seed) for config in contestants.finals_of(sweep, out).configs]
    (chosen,) = contestants.best_of(sweep, out).configs
    return finals, chosen.lr


@pytest.mark.usefixtures("every_run_has_ended")
def test_of_the_finalists_the_best_mean_is_chosen(tmp_path):
    lucky, steady, worse = (1.0, 3.0, 3.2), (2.0, 2.0, 2.1), (2.5, 0.0, 0.0)
    finals, lr = choice_among(tmp_path, {0.1: lucky, 0.2: steady, 0.3: worse})
    assert finals == [(0.1, 8), (0.2, 8), (0.1, 9), (0.2, 9)], "best trial first; two of three"
    assert lr == 0.2, "the trial's own value does not count again, nor a trial that is no finalist"


@pytest.mark.usefixtures("every_run_has_ended")
def test_a_finalist_that_diverged_is_chosen_only_if_all_did(tmp_path):
    values = {0.1: (1.0, None, 0.5), 0.2: (2.0, 4.0, 4.0), 0.3: (None, 0.0, 0.0)}
    assert choice_among(tmp_path / "one", values)[1] == 0.2
    values[0.2] = (2.0, None, None)
    assert choice_among(tmp_path / "both", values)[1] == 0.1, "then the one that did so less often"


@pytest.mark.usefixtures("every_run_has_ended")
def test_who_has_no_finished_trial_stops_nobody_else(tmp_path):
    sweep = sweep_from_table("t", {**DIGITS, "cells": CELLS})
    for config in sweep.configs:
        ended(tmp_path, config, None if config.optimizer == "sgdf" else 50.0)
    best = contestants.best_of(sweep, tmp_path)
    assert best.configs
    assert "sgdf" not in {config.optimizer for config in best.configs}


def test_a_trial_that_another_process_has_not_ended_is_waited_for(monkeypatch, tmp_path):
    """Among fewer trials the choice might be another one."""
    sweep = sweep_from_table("t", {**DIGITS, "cells": CELLS})
    last = sweep.configs[-1].name
    ends = {True: None, False: {"status": "finished"}}
    monkeypatch.setattr(
        contestants, "read_checked", lambda folder, config: ends[folder.name == last]
    )
    with pytest.raises(UserError, match=r"1 of \d+ trials have not ended"):
        contestants.best_of(sweep, tmp_path)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"set": {}}, "trials are compared by validation: set validation=N for digits"),
        ({"seeds": [0, 1]}, "seed 0 is that of the trials: the best settings need others"),
        ({"seeds": [-1]}, "seed is an integer of at least 0, not -1"),
        ({"cells": [{"optimizer": 3}]}, "optimizer is a name, not 3"),
        (
            {"cells": [{"optimizer": "sgdf", "gain_share": 0.5, "betas": 0.9}]},
            "betas is a pair of numbers, not 0.9",
        ),
        ({"trials": 0}, "trials is an integer of at least 1, not 0"),
        ({"cells": []}, "there is nothing to run"),
        ({"space": {"adam": {"lr": [1, 2]}}}, r"\[space.adam\] is of an optimizer that is not in"),
        ({"space": {"sgdf": {"lr": [2, 1]}}}, "two positive numbers, the smaller one first"),
        (
            {"space": {"sgdf": {"lr": 0.1}}},
            "the space of lr is a list of two numbers, or .* not 0.1",
        ),
        ({"space": {"sgdf": {"momentum": [0.1, 0.2]}}}, "no setting of sgdf 'momentum'"),
        ({"space": {"sgdf": {"beta3": [0.1, 0.2]}}}, "no setting of sgdf 'beta3'"),
        ({"space": {"sgdf": {"eps": {"range": [0, 1], "scale": "lin"}}}}, "did you mean linear"),
        ({"space": {"sgdf": {"eps": {"range": [0, 1], "scale": "log"}}}}, "two positive numbers"),
        ({"space": {"sgdf": {"maximize": {"choices": [True]}}}}, "at least two values"),
        ({"space": {"sgdf": {"eps": {"choices": ["x", "y"]}}}}, "eps is a number, not 'y'|'x'"),
        ({"task": "voc", "set": {}}, "voc has no validation data to choose a setting by"),
        ({"trials": 10**6}, "and the limit is 10,000"),
        ({"trials": 1001}, "trials is at most 1,000, not 1,001"),
        ({"finalists": 2, "choice_seeds": [*range(9, 4009)]}, "and the limit is 10,000"),
        ({"finalists": 0}, "finalists is an integer of at least 1, not 0"),
        ({"finalists": 5}, "there are 5 finalists of 4 trials: give fewer"),
        ({"choice_seeds": [3]}, "choice_seeds are the seeds of finalists: give finalists = N"),
        ({"finalists": 2, "choice_seeds": []}, "choice_seeds is a list of integers"),
        ({"finalists": 2, "choice_seeds": [0]}, "seed 0 is that of the trials"),
        ({"finalists": 2, "choice_seeds": [3, 2]}, "seed 2 is in seeds and in choice_seeds"),
    ],
)
def test_bad_input_is_one_sentence(values, sentence):
    with pytest.raises(UserError, match=sentence):
        sweep_from_table("t", {**DIGITS, "cells": CELLS, **values})


@pytest.mark.parametrize(("key", "value"), [("space", {}), ("finalists", 2), ("choice_seeds", [5])])
def test_what_needs_trials(key, value):
    with pytest.raises(UserError, match=f"{key}]? needs trials: give trials = N"):
        sweep_from_table("t", {"task": "digits", key: value, "cells": CELLS})


@pytest.mark.parametrize(("task", "model"), [("text", "gpt-tiny"), ("digits", "mlp")])
def test_the_preset(task, model):
    values = {"task": task, "model": model, "data": "synthetic", "trials": 2}
    sweep = sweep_from_preset("tuned", values)
    assert {len(trials) for trials in sweep.trials} == {2}
    assert len(sweep.seeds) >= 5
    for config in sweep.configs:  # what it is chosen by is not what is reported
        assert config.validation or config.option("test_tokens")
    untested = sweep_from_preset("tuned", {**values, "task": "text", "model": "gpt-tiny",
                                           "set": {"test_tokens": 0}})  # fmt: skip
    assert not untested.configs[0].option("test_tokens"), "what a user says counts"
    more = sweep_from_preset("tuned", {**values, "finalists": 2})
    assert (more.finalists, more.choice_seeds) == (2, tuple(plan.CHOICE_SEEDS))
    with pytest.raises(UserError, match="finalists needs trials"):
        sweep_from_preset("lr-grid", {"task": "digits", "finalists": 2})
    with pytest.raises(UserError, match="lr-grid is a grid: leave --trials out"):
        sweep_from_preset("lr-grid", {"task": "digits", "trials": 2})


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_the_files_of_the_evidence_can_be_planned(path):
    sweep = sweep_from_file(path)
    precisions = {config.precision for config in sweep.configs}
    folder = path.parent.name
    if folder in ("evidence", "small", "again", "finals", "form", "gains"):
        assert precisions == {"bf16" if folder == "evidence" else "fp32"}
        if isinstance(sweep, Tuned):
            assert len(sweep.trials) > 1
            assert len(sweep.seeds) >= 3
    assert len(precisions) == 1
    for config in sweep.configs:  # what it is chosen by is not what is reported
        assert config.validation or config.option("test_tokens")


RECORDS = Path(__file__).parents[3] / "results" / "evidence"
OF_AN_EARLIER_PLAN = "gpt-11m-encyclopedia"
RECORDED = [
    path
    for path in EVIDENCE
    if (RECORDS / path.stem / "runs.jsonl").exists()
    and path.stem != OF_AN_EARLIER_PLAN
    and "trials" in tomllib.loads(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_recorded_trials_are_those_of_the_plan(path):
    """A change of a declared space must not take records from a comparison; some have not ended."""
    sweep = sweep_from_file(path)
    records, complaints = read_runs([RECORDS / path.stem / "runs.jsonl"])
    assert not complaints
    found = {
        (r.config.optimizer, configs.frozen(r.config.settings))
        for r in records
        if r.config.seed == plan.TRIAL_SEED
    }
    assert found
    assert found <= {(c.optimizer, configs.frozen(c.settings)) for c in sweep.configs}

"""Schedules as pure functions of the step, and their warm-up."""

import json
import math
from dataclasses import replace

import pytest

from runs.commands import folder_in
from sgdf_lab.cli.main import main
from sgdf_lab.runs import config as configs
from sgdf_lab.support.errors import UserError
from sgdf_lab.training import schedules
from sgdf_lab.training.schedules import Shape
from tasks.processes import assert_refused


def of(name, epoch, epochs=200, steps=4, **shape):
    shape = Shape(**{"milestones": (150,), **shape})
    shape = replace(shape, milestones=[m * steps for m in shape.milestones])
    first, total = epoch * steps, epochs * steps
    return schedules.factors(name, shape, first=first, count=steps, steps=total)


def run(name, epochs=10, steps=10, **shape):
    return [f for epoch in range(epochs) for f in of(name, epoch, epochs, steps, **shape)]


def test_schedules():
    assert of("step", 149) == [1.0] * 4  # the 150th epoch
    assert of("step", 150) == [0.1] * 4  # before the 151st
    assert of("step", 199, milestones=(100, 150)) == pytest.approx([0.01] * 4)
    assert of("constant", 199) == [1.0] * 4
    assert of("inverse-sqrt", 0) == [1 / math.sqrt(t) for t in (1, 2, 3, 4)]
    assert of("cosine", 0)[0] == 1.0
    assert of("cosine", 100)[0] == pytest.approx(0.5)
    assert 0 < of("cosine", 199)[-1] < 1e-4


def test_linear_falls_by_equal_steps():
    assert run("linear") == pytest.approx([1 - i / 100 for i in range(100)])


def test_wsd_is_constant_and_then_linear():
    stable, decaying = [1.0] * 81, [1 - i / 20 for i in range(1, 20)]
    assert run("wsd") == pytest.approx(stable + decaying)
    assert run("wsd", decay=0.5)[:51] == pytest.approx([1.0] * 51)
    assert run("wsd", decay=1) == pytest.approx(run("linear"))


@pytest.mark.parametrize("name", sorted(schedules.SCHEDULES.keys() - {"triangle"}))
def test_warmup_rises_by_equal_steps_to_the_full_rate(name):
    for warmup in (0.05, 5):
        factors = run(name, warmup=warmup)
        assert factors[:6] == pytest.approx([i / 6 for i in range(1, 7)])
        assert max(factors) == 1.0


@pytest.mark.parametrize("name", ["cosine", "linear", "inverse-sqrt"])
def test_what_falls_begins_after_the_warmup(name):
    assert run(name, warmup=20)[20:] == pytest.approx(run(name, epochs=8))


def test_milestones_and_decay_count_in_the_run():
    assert run("step", warmup=20, milestones=(5,))[20:] == [1.0] * 30 + [0.1] * 50
    assert run("wsd", warmup=20)[20:] == run("wsd")[20:]


def test_a_fraction_is_at_least_a_step_and_leaves_one():
    assert schedules.warmup_steps("cosine", Shape(warmup=1e-9), 100) == 1
    assert schedules.warmup_steps("cosine", Shape(warmup=0.999), 2) == 1
    assert schedules.warmup_steps("cosine", Shape(warmup=0.9), 1) == 0


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        *(({"warmup": value}, "warmup is a fraction of the run below 1, or a whole num")
          for value in (-1, -0.1, 1.0, 1.5, math.nan, math.inf, True, "x", None)),
        *(({"schedule": "wsd", "decay": value}, "decay is a fraction of the run, above 0 and up")
          for value in (0, -0.1, 1.1, math.nan, "x", True)),
        ({"schedule": "triangle", "warmup": 0.1}, "triangle has a warm-up of its own"),
    ],
)  # fmt: skip
def test_what_no_run_can_have(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        configs.make("digits", overrides=overrides)


def test_the_defaults_change_no_name():
    """The names of runs from before there was a warm-up."""
    assert configs.make("digits", epochs=2).name == "digits-mlp-sgdf-s0-717ab20a"
    for same in ({"warmup": 0}, {"warmup": 0.0}, {"decay": 0.2}):
        assert configs.make("digits", epochs=2, overrides=same).name.endswith("717ab20a")
    others = ({"warmup": 0.05}, {"warmup": 200}, {"schedule": "wsd"})
    names = {configs.make("digits", overrides=other).name for other in others}
    assert len(names) == 3


def test_the_rate_of_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits", "--data", "synthetic", "--device", "cpu", "--set", "batch=512"]
    words += ["--set", "lr=0.6", "--set", "schedule=constant", "--epochs", "3"]
    assert main([*words, "--set", "warmup=5"]) == 0, capsys.readouterr()
    text = (folder_in(tmp_path / "runs") / "metrics.jsonl").read_text()
    rates = [json.loads(line)["lr"] for line in text.splitlines()]  # of each epoch's last step
    assert rates == pytest.approx([0.4, 0.6, 0.6])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["warmup=8"], "a warmup of 8 steps is too long for a run of 8 steps"),
        (["warmup=9"], "a warmup of 9 steps is too long for a run of 8 steps"),
        (["warmup=7", "schedule=wsd"], "are together longer than the run of 8 steps"),
        (["warmup=0.9", "schedule=wsd"], "are together longer than the run of 8 steps"),
    ],
)
def test_a_warmup_longer_than_the_run(tmp_path, capsys, settings, sentence):
    words = ["digits", "--data", "synthetic", "--device", "cpu", "--set", "batch=512"]
    words += ["--epochs", "2", *(w for s in settings for w in ("--set", s))]
    assert_refused(words, sentence, tmp_path / "runs", capsys)

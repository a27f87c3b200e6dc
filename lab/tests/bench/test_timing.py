"""How often a step is timed. Never how fast it is."""

import math

from sgdf_lab.bench.timing import Budget, TimedSeries


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

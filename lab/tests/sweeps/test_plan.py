"""Planning a sweep: what is refused before any run of it is made."""

import itertools

import pytest

from sgdf_lab import paper
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import plan, presets
from sgdf_lab.sweeps.plan import MAX_RUNS, sweep_from_table


@pytest.fixture
def no_products(monkeypatch):
    """Fail, rather than fill the memory, if combinations are made before they are counted."""

    def refuse(*_: object) -> None:
        raise AssertionError("combinations were made before they were counted")

    monkeypatch.setattr(itertools, "product", refuse)


RATES = [i / 1000 for i in range(1, 1001)]


@pytest.mark.usefixtures("no_products")
@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"grid": {"lr": RATES, "eps": RATES, "weight_decay": RATES}}, "1,000,000,000"),
        ({"grid": {"lr": RATES}, "seeds": list(range(11))}, "11,000"),
        ({"cells": [{"lr": lr} for lr in RATES], "seeds": list(range(11))}, "11,000"),
        ({"grid": {f"x{i}": [1, 2] for i in range(20_000)}}, "about 10^6021"),
    ],
)
def test_too_many_runs_are_counted_not_made(values, count):
    with pytest.raises(UserError, match="the sweep has ") as caught:
        sweep_from_table("big", {"task": "digits", **values})
    assert f"has {count} runs, and the limit is 10,000" in str(caught.value)


def test_the_limit_itself_is_allowed():
    plan.check_count(MAX_RUNS // 10, 10)
    with pytest.raises(UserError, match="10,001 runs"):
        plan.check_count(MAX_RUNS + 1, 1)


def test_a_range_of_seeds_is_counted_not_expanded():
    with pytest.raises(UserError, match=r"runs, and the limit is 10,000"):
        presets.sweep_from_paper(next(iter(paper.PRESETS)), seeds=range(10**9))

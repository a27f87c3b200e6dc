"""The kinds share the time, and in a kind the rows take turns."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from torture import schedule
from torture.outcome import SAME, TRACEBACK, Case, Outcome
from torture.schedule import Schedule, Turn, by_turns

SECONDS = {"slow": 10.0, "quick": 1.0, "few": 1.0}  # of a case
CASES = {"slow": 100, "quick": 1000, "few": 3}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def case(kind: str, name: object, row: str = "row") -> Case:
    return Case(kind, row, f"{kind} {name}", lambda *_: Outcome(SAME))


def plan(kind: str, round_: int) -> Iterable[Case]:
    return [case(kind, f"{i} {round_}") for i in range(CASES[kind])]


def tried(clock: list[float], workers: int, minutes: float, **options: object) -> list[Turn]:
    """What several workers try until the time is over."""
    rounds = options.pop("rounds", lambda _: itertools.count())
    made = Schedule([*SECONDS], plan, rounds, 60 * minutes, **options)
    found: list[Turn] = []
    busy: list[tuple[float, Turn | None]] = [(0.0, None)] * workers
    while busy:
        busy.sort(key=lambda entry: entry[0])
        clock[0], turn = busy.pop(0)
        if turn:
            made.done(turn)
        if turn := made.next():
            turn.since = clock[0]
            found.append(turn)
            busy.append((clock[0] + SECONDS[turn.case.kind], turn))
    return found


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_kinds_share_the_time(workers: int, clock: list[float]) -> None:
    """In first come, first served, the slow kind would take all of it."""
    found = tried(clock, workers, minutes=5)
    seconds = Counter()
    for turn in found:
        seconds[turn.case.kind] += SECONDS[turn.case.kind]
    assert seconds["few"] == 3
    assert min(seconds["slow"], seconds["quick"]) > 0.4 * (300 * min(workers, 2) - 20)
    assert {turn.round for turn in found} == {0}


def test_nothing_is_tried_again_before_all_was_tried_once(clock: list[float]) -> None:
    found = tried(clock, 2, minutes=60)
    rounds = [turn.round for turn in found]
    assert rounds == sorted(rounds)
    assert Counter(rounds)[0] == sum(CASES.values())
    assert rounds[-1] > 0


def test_it_ends_when_nothing_is_left(clock: list[float]) -> None:
    found = tried(clock, 2, minutes=600, rounds=lambda _: (0,))
    assert len(found) == sum(CASES.values())


def test_of_some_kinds_one_case_runs_at_a_time(clock: list[float]) -> None:
    made = Schedule([*SECONDS], plan, lambda _: (0,), 60.0, together=("slow", "quick"))
    assert {made.next().case.kind, made.next().case.kind} in ({"slow", "few"}, {"quick", "few"})


def test_rows_take_turns() -> None:
    cases = [*(case("kind", i, "long") for i in range(50)), case("kind", "only", "short")]
    found = by_turns(cases, random.Random(0))
    assert sorted(c.name for c in found) == sorted(c.name for c in cases)
    assert {c.row for c in found[:2]} == {"long", "short"}
    assert [c.name for c in found if c.row == "long"] != [c.name for c in cases[:-1]]


def test_planned_cases_are_counted_by_row() -> None:
    made = Schedule(["few"], plan, lambda _: (0, 1), time.monotonic() + 60)
    while turn := made.next():
        made.done(turn)
    assert made.planned == {("few", "row"): 3}


def test_a_plan_that_fails_is_a_bug() -> None:
    def broken(kind: str, round_: int) -> Iterable[Case]:
        raise OSError("no disk")

    made = Schedule(["few"], broken, lambda _: (0,), time.monotonic() + 60)
    turn = made.next()
    assert turn is not None
    outcome = turn.case.tried(None, None)  # type: ignore[arg-type]
    assert (outcome.word, outcome.detail) == (TRACEBACK, "no plan: OSError('no disk')")
    assert made.next() is None

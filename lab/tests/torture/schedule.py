"""Which case is tried next: the kinds share the time, and within a kind the rows take turns."""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torture.outcome import TRACEBACK, Bug, Case, Outcome

Plan = Callable[[str, int], Iterable[Case]]  # the cases of a kind in a round


@dataclass
class Turn:
    """A case that was dealt out."""

    case: Case
    round: int
    since: float = field(default_factory=time.monotonic)


@dataclass
class Share:
    """What a kind has had of the time, and what is left of its round."""

    kind: str
    rounds: Iterator[int]
    round: int = -1
    waiting: deque[Case] = field(default_factory=deque)
    seconds: float = 0.0
    running: int = 0
    over: bool = False

    @property
    def next_round(self) -> int:
        """The round of its next case."""
        return self.round if self.waiting else self.round + 1


class Schedule:
    """Deals out cases to several workers until the time is over.

    The next case is of a kind in the earliest round: all cases are tried once before any is tried
    again. Among these kinds it is the one with the fewest cases under way, then the one that has
    had the least time, so that a kind of a few thousand cases leaves time for the others.

    Args:
        kinds: in the order of their first turn.
        plan: the cases of a kind in a round.
        rounds: the numbers of the rounds of a kind.
        end: when the time is over, by `time.monotonic`.
        together: kinds of which only one case can run at a time.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        plan: Plan,
        rounds: Callable[[str], Iterable[int]],
        end: float,
        together: Sequence[str] = (),
    ) -> None:
        self.shares = [Share(kind, iter(rounds(kind))) for kind in kinds]
        self.plan, self.end, self.together = plan, end, together
        self.planned: Counter[tuple[str, str]] = Counter()  # cases of the first round, by row
        self.lock = threading.Lock()

    def next(self) -> Turn | None:
        """None when the time is over or nothing is left."""
        with self.lock:
            while time.monotonic() < self.end and (able := [s for s in self.shares if not s.over]):
                share = min(able, key=lambda s: (s.next_round, self._under_way(s), s.seconds))
                if share.waiting:
                    share.running += 1
                    return Turn(share.waiting.popleft(), share.round)
                self._plan_round(share)
        return None

    def done(self, turn: Turn) -> None:
        with self.lock:
            (share,) = (s for s in self.shares if s.kind == turn.case.kind)
            share.running -= 1
            share.seconds += time.monotonic() - turn.since

    def _under_way(self, share: Share) -> int:
        kinds = self.together if share.kind in self.together else (share.kind,)
        return sum(other.running for other in self.shares if other.kind in kinds)

    def _plan_round(self, share: Share) -> None:
        number = next(share.rounds, None)
        if number is None:
            share.over = True
            return
        share.round += 1
        share.waiting.extend(self._cases(share.kind, number))
        if share.round == 0:
            self.planned.update((case.kind, case.row) for case in share.waiting)

    def _cases(self, kind: str, number: int) -> list[Case]:
        try:
            return list(self.plan(kind, number))
        except Exception as error:
            failed = partial(fail, f"no plan: {error!r}")
            return [Case(kind, "planning", f"planning {number}", failed)]


def fail(why: str, *_: object) -> Outcome:
    raise Bug(TRACEBACK, why)


def by_turns(cases: Iterable[Case], chance: random.Random) -> list[Case]:
    """One of each row, then a second one of each: wherever the time ends, every row had its turn.

    Within a row the order is random, so that what is left out is not always the end of a run.
    """
    rows: dict[str, list[Case]] = {}
    for case in cases:
        rows.setdefault(case.row, []).append(case)
    for row in rows.values():
        chance.shuffle(row)
    longest = max(map(len, rows.values()), default=0)
    return [row[i] for i in range(longest) for row in rows.values() if i < len(row)]

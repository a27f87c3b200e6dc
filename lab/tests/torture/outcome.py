"""What can come of a case, and the cases themselves."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runs.commands import Ended

if TYPE_CHECKING:
    from torture.bench import Bench

SAME = "same bytes"
CLOSE = "within rounding"
SENTENCE = "one sentence"
DIFFERENT = "differing numbers"
TRACEBACK = "traceback"
CRASH = "crash"
HANG = "hang"
RAN_CODE = "ran code of a file"
GOOD = (SAME, CLOSE, SENTENCE)
BUGS = (DIFFERENT, TRACEBACK, CRASH, HANG, RAN_CODE)

#: An exception that nobody explained: the command line names its type.
UNEXPLAINED = re.compile(r"^sgdf: [\w.]+: .*\(--debug shows where\)$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The end of a case.

    Args:
        word: one of GOOD or BUGS.
        faults: how many kills, damaged files or steps it took.
        detail: what happened, for the reproduction of a bug.
        numbers: measurements; equal names are joined by `joined`.
    """

    word: str
    faults: int = 1
    detail: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_bug(self) -> bool:
        return self.word in BUGS


class Bug(Exception):
    """Ends a case at once."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(detail)
        self.word, self.detail = word, detail


@dataclass(frozen=True)
class Case:
    """Something that is tried. Its name gives its seed, so it can be tried again alone."""

    kind: str
    row: str  # of the table
    name: str
    run: Callable[["Bench", Path], Outcome]

    def tried(self, bench: "Bench", folder: Path) -> Outcome:
        """Run it in an empty folder; a `Bug` is its outcome."""
        try:
            return self.run(bench, folder)
        except Bug as bug:
            return Outcome(bug.word, detail=bug.detail)


def joined(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Add counts up; of a "largest" take the larger."""
    result = dict(a)
    for name, value in b.items():
        before = result.get(name, 0)
        result[name] = max(before, value) if name.startswith("largest") else before + value
    return result


def check_refusal(ended: Ended) -> None:
    """Raise a `Bug` unless a command ended with exit code 1 and one clear sentence."""
    if ended.code < 0:
        raise Bug(CRASH, f"signal {-ended.code}: {ended.output[-2000:]}")
    if "Traceback" in ended.output or UNEXPLAINED.search(ended.output):
        raise Bug(TRACEBACK, ended.output[-3000:])
    lines = ended.output.rstrip("\n").split("\n")
    if ended.code != 1 or not lines[-1].startswith("sgdf: "):
        raise Bug(TRACEBACK, f"exit code {ended.code}, not one sentence: {ended.output[-2000:]}")


def check_success(ended: Ended) -> None:
    """Raise a `Bug` unless a command succeeded."""
    if ended.code != 0:
        check_refusal(ended)
        raise Bug(DIFFERENT, f"it refused: {ended.output[-2000:]}")
    if "Traceback" in ended.output:
        raise Bug(TRACEBACK, ended.output[-3000:])


def ended_well(ended: Ended) -> str:
    """SAME if a command succeeded, SENTENCE if it refused; a `Bug` if it ended otherwise."""
    if ended.code == 0:
        check_success(ended)
        return SAME
    check_refusal(ended)
    return SENTENCE

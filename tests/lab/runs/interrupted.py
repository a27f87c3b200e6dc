"""`sgdf` that is sent a signal at one of its own disk operations, in its first start.

python interrupted.py SIGNAL self|parent "replace last.pt" NTH train ... --out FOLDER

A test that watches a run from outside and then kills it can be too late on a busy machine.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from lab.runs.commands import EVERY_EPOCH
from lab.runs.run_driver import Fault, inject
from sgdf.lab.runs import disk


class Signal(Fault):
    """A signal for this process, or for the one that started it, at the nth such operation."""

    def __init__(self, word: str, target: str, op: str, nth: int) -> None:
        super().__init__(op, nth)
        self.signal = signal.Signals[word]
        self.pid = os.getpid() if target == "self" else os.getppid()

    def trigger(self, name: str) -> None:
        os.kill(self.pid, self.signal)


def interrupt(word: str, target: str, op: str, nth: str, out: str) -> None:
    """Every epoch is saved from now on, and the signal is sent unless torchrun restarted this."""
    disk.SAVING_SHARE = EVERY_EPOCH
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        inject(Path(out).absolute(), Signal(word, target, op, int(nth)))


if __name__ == "__main__":
    from sgdf.cli.main import leave, main

    words = sys.argv[5:]
    interrupt(*sys.argv[1:5], out=words[words.index("--out") + 1])
    leave(main(words))

"""`sgdf` that is killed at one of its own disk operations, in its first start under torchrun.

python interrupted.py "replace last.pt" NTH train ... --out FOLDER

A test that watches a run from outside and then kills it can be too late on a busy machine.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from runs.commands import EVERY_EPOCH
from runs.run_driver import Fault, inject
from sgdf_lab.runs import run_folder

if __name__ == "__main__":
    from sgdf_lab.cli.main import leave, main

    op, nth, *words = sys.argv[1:]
    run_folder.SAVING_SHARE = EVERY_EPOCH
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        out = Path(words[words.index("--out") + 1])
        inject(out.absolute(), Fault(op, int(nth), "SIGKILL"))
    leave(main(words))

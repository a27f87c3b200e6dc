"""`python lab/tests/torture` from the root of the repository: see runner.py."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
tests = Path(__file__).parents[1]
sys.path[0:1] = [str(tests), str(tests.parents[1] / "benchmarks")]  # not this folder: plain names

from torture.runner import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())

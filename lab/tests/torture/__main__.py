"""`python lab/tests/torture` from the root of the repository: see runner.py."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
root = Path(__file__).parents[3]
# Not this folder, whose names are too plain.
sys.path[0:1] = [str(root / name) for name in ("lab/tests", "tests", "benchmarks")]

from torture.runner import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())

"""`python -m sgdf` is the command `sgdf` of the lab, where the lab is installed."""

import importlib.util
import runpy
import sys

if __name__ == "__main__":
    if importlib.util.find_spec("sgdf_lab") is None:
        sys.exit("sgdf: the command line is part of the lab: pip install sgdf-lab")
    runpy.run_module("sgdf_lab", run_name="__main__", alter_sys=True)

"""What a number needs beside it to be made again: the code's commit and the machine."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import sgdf


def machine(device: str) -> dict[str, Any]:
    try:
        triton: str | None = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "cuda": torch.version.cuda if device == "cuda" else None,
        "torch": str(torch.__version__),
        "triton": triton,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of this code, "-dirty" if either package has changes; SGDF_COMMIT overrides."""
    if "SGDF_COMMIT" in os.environ:
        return os.environ["SGDF_COMMIT"]
    here = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        ran = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True)
        return ran.stdout.strip()

    with contextlib.suppress(OSError):
        # An installed copy may lie inside the repository of another project.
        if git("ls-files", "__init__.py"):
            library = Path(sgdf.__file__).parent
            changes = git("status", "-s", ".") or git("-C", str(library), "status", "-s", ".")
            return git("rev-parse", "HEAD") + ("-dirty" if changes else "")
    return None

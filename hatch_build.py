"""Wheels with the CPU kernel inside: `SGDF_PREBUILT=1 python -m build --wheel` on x86-64 Linux.

Without that variable a wheel has the source only, which is compiled at the first step. The library
is built once for each capability that torch tells apart (`sgdf.kernels.cpu`). It is not linked to
an OpenMP runtime: torch has one loaded, and its symbols are found there.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src", "sgdf", "kernels")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fopenmp"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]  # as in sgdf.kernels.cpu
VARIANTS = {
    "avx2": ["-mavx2"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
}
GLIBC = (2, 28)  # as torch's own wheels need
#: Newer versions of these exist; the old ones do, too, and are in every glibc.
OLD_SYMBOLS = "".join(
    f'__asm__(".symver {name},{name}@GLIBC_2.2.5");\n' for name in ("pow", "powf")
)


class Prebuilt(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled libraries, and the tag of the machines that they run on."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not os.environ.get("SGDF_PREBUILT"):
            return
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise RuntimeError("SGDF_PREBUILT: there are variants for x86-64 Linux only")
        self.folder = tempfile.TemporaryDirectory()
        for name, flags in VARIANTS.items():
            library = Path(self.folder.name, f"{name}.so")
            compile_to(library, Path(self.root, KERNELS, "cpu.cpp"), flags)
            build_data["force_include"][str(library)] = f"sgdf/kernels/prebuilt/{name}.so"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-manylinux_{}_{}_x86_64".format(*GLIBC)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def compile_to(library: Path, source: Path, flags: list[str]) -> None:
    header, compiled = library.with_suffix(".h"), library.with_suffix(".o")
    header.write_text(OLD_SYMBOLS)
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, *FLAGS, *flags, "-include", header, "-c", source, "-o", compiled]
    subprocess.run(command, check=True)
    subprocess.run([compiler, "-shared", "-s", compiled, "-o", library], check=True)
    symbols = subprocess.run(["objdump", "-T", library], check=True, capture_output=True, text=True)
    needed = [tuple(map(int, v)) for v in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols.stdout)]
    if max(needed) > GLIBC:
        raise RuntimeError(f"{library.name} needs glibc {max(needed)}, newer than {GLIBC}")

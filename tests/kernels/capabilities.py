"""Run the kernel tests with each instruction set that torch has here: default, AVX2, AVX-512.

torch chooses its CPU kernels by instruction set and they round differently, so this machine stands
for others. A set that the processor lacks cannot run: torch would execute instructions it does not
know.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
TESTS = (HERE, HERE.parent / "test_filter.py")
NO_ARITHMETIC = ("test_cpu_library.py", "test_changes.py")  # compiling, caching, addresses
#: Each includes those before it. torch prints these names, and ATEN_CPU_CAPABILITY takes them.
SETS = ("default", "avx2", "avx512")


def available() -> tuple[str, ...]:
    best = torch.backends.cpu.get_cpu_capability().lower()
    return SETS[: SETS.index(best) + 1] if best in SETS else (best,)


def main() -> int:
    failed = []
    for capability in available():
        print(f"ATEN_CPU_CAPABILITY={capability}", flush=True)
        environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not gpu"]
        command += [f"--ignore={HERE / name}" for name in NO_ARITHMETIC]
        if subprocess.run([*command, *map(str, TESTS)], env=environment).returncode:
            failed.append(capability)
    if failed:
        print(f"failed with {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

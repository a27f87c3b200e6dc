"""Run the kernel tests with the other instruction sets that torch has here: default, AVX2.

torch chooses its CPU kernels by instruction set and they round differently, so this machine stands
for others. The best set is left out: it is what torch takes by itself, in every other run of these
tests. One that the processor lacks cannot run: torch would execute instructions it does not know.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
TESTS = (HERE, HERE.parent / "test_filter.py")
NO_ARITHMETIC = ("test_build.py", "test_changes.py", "test_cpu_library.py")
#: Triton's interpreter computes with NumPy, and JAX with XLA, whatever set torch takes.
OTHER_ARITHMETIC = ("test_cuda.py", "test_triton_compiles.py")
SELECTED = "not triton and not jax"  # also in the names of single tests
#: Each includes those before it. torch prints these names, and ATEN_CPU_CAPABILITY takes them.
SETS = ("default", "avx2", "avx512")


def others() -> tuple[str, ...]:
    """The sets below the one that torch takes by itself."""
    best = torch.backends.cpu.get_cpu_capability().lower()
    return SETS[: SETS.index(best)] if best in SETS else ()


def main() -> int:
    failed = []
    for capability in others():
        print(f"ATEN_CPU_CAPABILITY={capability}", flush=True)
        environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not gpu", "-k", SELECTED]
        command += [f"--ignore={HERE / name}" for name in NO_ARITHMETIC + OTHER_ARITHMETIC]
        if subprocess.run([*command, *map(str, TESTS)], env=environment).returncode:
            failed.append(capability)
    if failed:
        print(f"failed with {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

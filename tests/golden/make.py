"""Write the golden checkpoints of this version: `python tests/golden/make.py`.

Once per release (CONTRIBUTING.md). Every later version has to load them, so an existing file is
never written again: before a release only those of new cases are added.

    0.1.0/NAME.pt           an optimizer's state after three steps, and what the next step adds
    0.1.0/optax-NAME.npz    the same in JAX: the leaves of the state by their paths
"""

import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import sgdf  # noqa: E402
from golden import cases, jax_cases  # noqa: E402


def write_optimizers(folder: Path) -> None:
    for name, case in cases.all_cases().items():
        pair = cases.Pair(case)
        for number in range(cases.STEPS):
            pair.step(number)
        saved = pair.state_dicts()
        path = folder / f"{name}.pt"
        if path.exists():
            continue
        torch.save(saved, path)
        again = cases.Pair(case)
        again.load(torch.load(path, weights_only=True))
        golden = {
            "optimizer": case.optimizer,
            "settings": case.settings,
            "dtype": case.dtype,
            "state_dicts": saved,
            "next_update": again.next_update(),
        }
        torch.save(golden, path)


def write_optax(folder: Path) -> None:
    for name in jax_cases.CASES:
        if (folder / f"optax-{name}.npz").exists():
            continue
        transformation, state = jax_cases.start(name)
        for number in range(cases.STEPS):
            _, state = jax_cases.update(transformation, state, number)
        change, _ = jax_cases.update(transformation, state, cases.STEPS)
        np.savez_compressed(folder / f"optax-{name}.npz", **jax_cases.leaves(state), update=change)


def main() -> None:
    folder = HERE / sgdf.__version__
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    write_optimizers(folder)
    write_optax(folder)
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()

"""What a step runs of this package; `python tests/optim/step_chain.py` prints the chain."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import sgdf

ROOT = f"{Path(sgdf.__file__).parent}{os.sep}"


@contextmanager
def recorded() -> Iterator[list[tuple[int, str, str]]]:
    """The Python calls of this package in the block: depth, file and function."""
    calls: list[tuple[int, str, str]] = []
    depth = 0

    def profile(frame, event, argument):
        nonlocal depth
        if not frame.f_code.co_filename.startswith(ROOT):
            return
        if event == "call":
            file = frame.f_code.co_filename.removeprefix(ROOT)
            calls.append((depth, file, frame.f_code.co_qualname))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def chain_of_a_step(optimizer_class=sgdf.FilterAdamW, **settings) -> list[tuple[int, str, str]]:
    """The calls of the third step on two parameters."""
    parameters = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3))]
    optimizer = optimizer_class(parameters, **settings)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.randn(p.shape)
        with recorded() as calls:
            optimizer.step()
    return calls


if __name__ == "__main__":
    chain = chain_of_a_step()
    for depth, file, function in chain:
        print(f"{'  ' * depth}{function}  ({file})")
    print(f"{len(chain)} calls in {len({file for _, file, _ in chain})} files")

"""What the scripts that time the lab's trainers share."""

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgdf_lab.support import provenance
from sgdf_lab.training.loop import Trainer


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def epoch(lab: Trainer) -> None:
    for _ in lab.epoch():
        pass


class Bare:
    """Forward, backward and the optimizer's step on one batch, repeatedly.

    Compiled and captured as in the trainer.
    """

    def __init__(self, lab: Trainer, loss: Callable[[], torch.Tensor]) -> None:
        self.lab = lab
        self.loss: Callable[[], torch.Tensor] = torch.compile(loss) if lab.on_gpu else loss

    def work(self) -> None:
        self.lab.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        self.lab.optimizer.step()

    def __call__(self, steps: int) -> None:
        graphs = self.lab.graphs if self.lab.captures_step else None
        for _ in range(steps):
            with self.lab._turn():
                if graphs is None:
                    self.work()
                else:
                    graphs.run("bare", self.work)


def made_by(device: torch.device) -> dict[str, Any]:
    """The beginning of a record: how to make it again."""
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    return {
        "command": shlex.join(["python", script, *sys.argv[1:]]),
        "commit": provenance.commit(),
        "machine": provenance.machine(device.type),
    }

"""What tests do with trainers on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sgdf_lab.training.loop import Trainer, take_turns

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
Lines = list[dict[str, Any]]


def epochs(trainer: Trainer, count: int) -> Lines:
    found = []
    for _ in range(count):
        take_turns([trainer.epoch()])
        found.append(trainer.metrics())
    return found


def same(first: Lines, second: Lines, rel: float = 2e-3, abs: float = 0.0) -> None:
    """Losses, rates and all other numbers; accuracies of few images may differ by some of them."""
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name, value in b.items():
            if name == "lr":
                assert a[name] == value
            elif not name.endswith("accuracy"):
                assert a[name] == (value and pytest.approx(value, rel=rel, abs=abs)), name


def assert_undisturbed(make: Callable[[int], Trainer], count: int, rel: float = 2e-3) -> Lines:
    """Trainers of two seeds that take turns, on streams of their own, are as each by itself."""
    alone = [epochs(make(seed), count) for seed in (0, 1)]
    trainers = [make(seed) for seed in (0, 1)]
    together: list[Lines] = [[], []]
    for _ in range(count):
        take_turns([trainer.epoch() for trainer in trainers])
        for trainer, results in zip(trainers, together, strict=True):
            results.append(trainer.metrics())
    for first, second in zip(alone, together, strict=True):
        same(second, first, rel=rel, abs=rel)
    return [results[-1] for results in alone]


def assert_resumes(make: Callable[[], Trainer], path: Any, after: int, count: int) -> None:
    """From a checkpoint on disk after some of the epochs."""
    straight = epochs(make(), count)
    broken = make()
    epochs(broken, after)
    torch.save(broken.state_dict(), path)
    again = make()
    again.load_state_dict(torch.load(path, weights_only=True, map_location="cuda"))
    same(epochs(again, count - after), straight[after:])

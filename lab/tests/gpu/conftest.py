"""What the tests on a GPU share."""

import pytest
import torch

from sgdf_lab.training import loop


@pytest.fixture
def repeatable(monkeypatch):
    """Convolutions that repeat their results, for trainings that make much of a last digit."""

    def set_precision(precision: str) -> None:
        torch.set_float32_matmul_precision("highest")
        cudnn = torch.backends.cudnn
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = False, False, True

    monkeypatch.setattr(loop, "set_precision", set_precision)
    yield
    torch.backends.cudnn.deterministic = False

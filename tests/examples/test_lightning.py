"""Lightning, automatic and manual: it trains, and resumes with the same numbers."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("lightning")

from examples import lightning_module
from sgdf import SGDF

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = (lightning_module.Classifier, lightning_module.ManualClassifier)


@pytest.mark.parametrize("kind", KINDS)
def test_lightning_resumes_with_the_same_numbers(kind, tmp_path: Path) -> None:
    whole = lightning_module.fit(kind, tmp_path / "whole", epochs=4)
    assert sum(whole.losses[-8:]) < 0.6 * sum(whole.losses[:8])
    first = lightning_module.fit(kind, tmp_path / "parts", epochs=2)
    checkpoint = tmp_path / "parts" / "epoch-2.ckpt"
    resumed = lightning_module.fit(kind, tmp_path / "parts", epochs=4, resume=checkpoint)
    assert first.losses + resumed.losses == whole.losses
    assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_manual_and_automatic_are_the_same_training(tmp_path: Path) -> None:
    automatic, manual = (lightning_module.fit(kind, tmp_path, epochs=1) for kind in KINDS)
    assert manual.losses == automatic.losses


def test_the_script_runs() -> None:
    losses = lightning_module.main()
    assert losses[-1] < losses[0]


def test_one_cycle_moves_the_decay_rate_of_the_average() -> None:
    """A trap of any trainer: OneCycleLR takes the first of `betas` for momentum."""
    model = torch.nn.Linear(2, 1)
    optimizer = SGDF(model.parameters(), lr=0.5)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=10)
    assert optimizer.param_groups[0]["betas"] == (0.95, 0.999)
    optimizer = SGDF(model.parameters(), lr=0.5)
    torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.5, total_steps=10, cycle_momentum=False
    )
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)

"""Lightning, automatic and manual: it trains, and resumes with the same numbers."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ("Classifier", "ManualClassifier")


@pytest.fixture
def lightning_module() -> ModuleType:
    pytest.importorskip("lightning")
    return importlib.import_module("examples.lightning_module")


@pytest.mark.parametrize("kind", KINDS)
def test_lightning_resumes_with_the_same_numbers(lightning_module, kind, tmp_path: Path) -> None:
    kind = getattr(lightning_module, kind)
    whole = lightning_module.fit(kind, tmp_path / "whole", epochs=4)
    assert sum(whole.losses[-8:]) < 0.6 * sum(whole.losses[:8])
    first = lightning_module.fit(kind, tmp_path / "parts", epochs=2)
    checkpoint = tmp_path / "parts" / "epoch-2.ckpt"
    resumed = lightning_module.fit(kind, tmp_path / "parts", epochs=4, resume=checkpoint)
    assert first.losses + resumed.losses == whole.losses
    assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_manual_and_automatic_are_the_same_training(lightning_module, tmp_path: Path) -> None:
    automatic, manual = (
        lightning_module.fit(getattr(lightning_module, kind), tmp_path, epochs=1) for kind in KINDS
    )
    assert manual.losses == automatic.losses


def test_the_script_runs(lightning_module) -> None:
    losses = lightning_module.main()
    assert losses[-1] < losses[0]

"""Ray Train without workers: Ray calls the loop in this process, which takes no time.

With a worker the same script takes half a minute, most of it for starting processes.
"""

import importlib
import shutil
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def ray_train() -> ModuleType:
    pytest.importorskip("ray")
    pytest.importorskip("pyarrow")  # comes with ray[train]
    return importlib.import_module("examples.ray_train")


def test_the_script_trains(ray_train) -> None:
    first, last = (ray_train.main(workers=0, epochs=epochs)["loss"] for epochs in (1, 3))
    assert last < first < 0.7


def test_a_failed_loop_resumes_with_the_same_numbers(
    ray_train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's part is played here: to keep the last checkpoint, and to pass it to the next try."""
    undisturbed = ray_train.main(workers=0)
    train, report = ray_train.ray.train, ray_train.ray.train.report

    def keep(metrics, checkpoint) -> None:
        shutil.copytree(checkpoint.path, tmp_path / "kept", dirs_exist_ok=True)
        report(metrics, checkpoint=checkpoint)

    monkeypatch.setattr(train, "report", keep)
    with pytest.raises(RuntimeError, match="a failure, to show that the run resumes"):
        ray_train.main(workers=0, fail_after=2)
    kept = train.Checkpoint.from_directory(tmp_path / "kept")
    monkeypatch.setattr(train, "get_checkpoint", lambda: kept)
    assert ray_train.main(workers=0, fail_after=2) == undisturbed

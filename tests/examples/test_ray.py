"""Ray Train: in this process, and on a real worker that fails and is restarted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("pyarrow")  # comes with ray[train]

from examples import ray_train

pytestmark = pytest.mark.usefixtures("one_thread")
SCRIPT = Path(__file__).parents[2] / "examples" / "ray_train.py"


def test_the_script_trains() -> None:
    """Without workers Ray calls the loop in this process, which takes no time."""
    first, last = (ray_train.main(workers=0, epochs=epochs)["loss"] for epochs in (1, 3))
    assert last < first < 0.7


@pytest.mark.slow
def test_a_worker_that_fails_resumes_with_the_same_numbers() -> None:
    undisturbed = ray_train.main(workers=0)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RAY_ADDRESS": "local",  # a cluster of its own, whatever else runs here
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    command = [sys.executable, SCRIPT, "--fail-after", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "a failure, to show that the run resumes" in done.stderr + done.stdout
    assert f"epoch 2: loss {undisturbed['loss']!r}" in done.stdout

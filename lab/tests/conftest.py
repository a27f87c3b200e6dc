"""What the tests of the lab share."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from runs.commands import TEAMS, Server
from threads import one_thread  # noqa: F401, a fixture

if not torch.cuda.is_available():
    # Triton reads this when it is imported: without a GPU it interprets its kernels.
    os.environ.setdefault("TRITON_INTERPRET", "1")

#: Files whose tests train networks, compile, or start processes: not part of `make check`.
SLOW = (
    "lab/tests/bench/test_measure.py",
    "lab/tests/bench/test_memory.py",
    "lab/tests/bench/test_run.py",
    "lab/tests/cli/test_analyze.py",
    "lab/tests/cli/test_analyze_gradients.py",
    "lab/tests/cli/test_own_data_page.py",
    "lab/tests/cli/test_sentences.py",
    "lab/tests/cli/test_theory.py",
    "lab/tests/cli/test_train.py",
    "lab/tests/docs/test_examples.py",
    "lab/tests/docs/test_site.py",
    "lab/tests/instruments/test_estimators.py",
    "lab/tests/instruments/test_hessian.py",
    "lab/tests/instruments/test_landscape.py",
    "lab/tests/models/test_models.py",
    "lab/tests/models/test_vit.py",
    "lab/tests/paper/test_detection.py",
    "lab/tests/paper/test_gan.py",
    "lab/tests/paper/test_photos.py",
    "lab/tests/report/test_page.py",
    "lab/tests/runs/test_checkpoints.py",
    "lab/tests/runs/test_runs.py",
    "lab/tests/sweeps/test_cluster.py",
    "lab/tests/sweeps/test_sweeps.py",
    "lab/tests/tasks/test_language.py",
    "lab/tests/tasks/test_registry.py",
    "lab/tests/test_contributing.py",
    "lab/tests/test_package.py",
    "lab/tests/test_wheel.py",
    "lab/tests/theory/test_statements.py",
    "lab/tests/torture/test_torture.py",
    "lab/tests/train/test_decoded.py",
    "lab/tests/train/test_distributed.py",
    "lab/tests/train/test_loop.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def teams() -> Iterator[Server]:
    """A server for runs of one or two processes: torch is imported once for all of them."""
    server = Server(modules=TEAMS)
    yield server
    server.process.communicate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A `report.browser.Browser`."""
    from report.browser import CHROMIUM, Browser

    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("there is no chromium here: install it to see pages in a browser")
    with Browser() as running:
        yield running

"""What all tests share: one thread, Triton's interpreter, and no silent skips in CI."""

import os
from typing import Any

import pytest
import torch

from threads import one_thread  # noqa: F401, a fixture

if not torch.cuda.is_available():
    # Triton reads this when it is imported: without a GPU it interprets its kernels.
    os.environ.setdefault("TRITON_INTERPRET", "1")

#: Skips that CI accepts, by the beginning of their reason. Every other skip fails the run.
ALLOWED_SKIPS = {
    "nothing can be mounted here": "a tmpfs needs root with CAP_SYS_ADMIN, which a container lacks",
    "the wheel is for x86-64": "libraries for other processors are compiled at the first step",
    # torch's contract is of steps element by element; what FilterMuon and FilterSOAP do instead is
    # in tests/optim/test_matrix.py.
    "a complex matrix is stepped element by element": "so a pair of real matrices is another step",
    "the constructor's weight_decay is that of matrices": "a group's is that of its parameters",
    "the gradients are of rank one: rounding chooses the basis": "then two paths may differ",
}


#: Files whose tests train networks, compile, or start processes: not part of `make check`.
SLOW = (
    "tests/examples/test_deepspeed.py",
    "tests/examples/test_flax.py",
    "tests/examples/test_huggingface.py",
    "tests/examples/test_keras.py",
    "tests/examples/test_lightning.py",
    "tests/examples/test_plain.py",
    "tests/examples/test_ray.py",
    "tests/examples/test_timm.py",
    "tests/kernels/test_changes.py",
    "tests/kernels/test_cpu_library.py",
    "tests/kernels/test_cuda.py",
    "tests/kernels/test_overflow.py",
    "tests/optim/test_compile.py",
    "tests/optim/test_distributed.py",
    "tests/optim/test_in_backward.py",
    "tests/optim/test_low_precision.py",
    "tests/optim/test_matrix_distributed.py",
    "tests/test_optax.py",
    "tests/test_optax_matrix.py",
    "tests/test_optax_tools.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: `make test-gpu` there"))


def unexpected_skips(reports: list[Any]) -> list[str]:
    """The skipped tests whose reason is not on the list."""
    found = []
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(tuple(ALLOWED_SKIPS)):
            found.append(f"{report.nodeid or report.fspath}: {reason}")
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip is a failure: a missing package must not hide tests."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None or hasattr(session.config, "workerinput"):
        return
    skips = unexpected_skips(reporter.stats.get("skipped", []))
    if skips:
        reporter.write_line("")
        for line in skips:
            reporter.write_line(f"skipped in CI, and not in ALLOWED_SKIPS: {line}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

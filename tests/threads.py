"""A fixture of both test suites."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute with one thread, here and in started processes.

    torch splits sums among threads, so equal runs with other numbers of threads differ; and threads
    that wait for each other are slow on a busy machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("MKL_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)

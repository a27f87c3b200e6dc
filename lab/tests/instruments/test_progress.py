"""The count that an instrument shows of its work."""

import pytest

from sgdf_lab.instruments.evaluation import Counter, progress_counter

rich_progress = pytest.importorskip("rich.progress")


def test_each_stage_has_its_count():
    progress = rich_progress.Progress(disable=True)
    counter = Counter(progress)
    counter.tick()  # of no stage
    counter.begin("trace", 100)
    counter.tick(100)
    counter.begin("eigenvalues")
    counter.tick()
    counter.tick(70)
    shown = [(task.description, task.completed, task.total) for task in progress.tasks]
    assert shown == [("trace", 100, 100), ("eigenvalues", 71, None)]
    assert counter.done == 172


@pytest.mark.parametrize("shown", [False, True])
def test_it_counts_with_and_without_a_bar(shown):
    with progress_counter("products", shown) as counter:
        counter.begin("trace", 2)
        counter.tick(5)
    assert counter.done == 5

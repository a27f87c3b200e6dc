"""The count that an instrument shows of its work."""

import pytest

from sgdf_lab.instruments.evaluation import Counter, progress_counter

rich_progress = pytest.importorskip("rich.progress")


@pytest.fixture
def shown():
    """A counter, and what it shows."""
    progress = rich_progress.Progress(disable=True)
    counter = Counter(progress)

    def text():
        (task,) = progress.tasks
        return f"{task.description} {task.fields['count']}"

    return counter, text


def test_a_stage_of_unknown_length_shows_a_count_alone(shown):
    counter, text = shown
    counter.begin("trace", 100)
    counter.tick(100)
    assert text() == "trace 100/100"
    counter.begin("eigenvalues")
    for _ in range(50):
        counter.tick()
    assert text() == "eigenvalues 50"
    counter.tick(71)
    assert text() == "eigenvalues 121"


def test_a_total_that_was_passed_is_no_longer_shown(shown):
    counter, text = shown
    counter.begin("density", 3)
    counter.tick(2)
    assert text() == "density 2/3"
    counter.tick(2)
    assert text() == "density 4"
    assert counter.done == 4


def test_without_a_terminal_it_only_counts():
    with progress_counter("products", False) as counter:
        counter.begin("trace", 2)
        counter.tick(5)
    assert counter.done == 5

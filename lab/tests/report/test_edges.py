"""Warnings where the best setting lies at the edge of its grid."""

from pathlib import Path

import pytest

from report import made
from sgdf_lab.reports.comparison import edge_warnings


def grid(out: Path, finals: dict[float, float], validated: bool = True, **settings: float) -> None:
    """SGD at these learning rates; a final value of 0 means that the run diverged."""
    for lr, final in finals.items():
        config = made.config("sgd", lr=lr, validation=9 if validated else 0, **settings)
        values = [50, 55, final] if final else [50]
        extra = {"validation_accuracy": values} if validated else {}
        made.run(out, config, values, status="finished" if final else "diverged", extra=extra)


@pytest.mark.parametrize(
    ("finals", "words"),
    [
        ({0.1: 70, 0.3: 80, 1.0: 90}, "The best lr of sgd, 1, is the largest of the 3"),
        ({0.1: 90, 0.3: 80, 1.0: 70}, "The best lr of sgd, 0.1, is the smallest of the 3"),
        ({0.1: 90, 0.3: 80}, "The best lr of sgd, 0.1, is the smallest of the 2"),
        ({0.1: 70, 0.3: 90, 1.0: 80}, ""),
        ({0.1: 70, 0.3: 90, 1.0: 0}, ""),  # the next rate was tried, and diverged
        ({0.1: 90}, ""),
    ],
)
def test_the_best_rate(tmp_path: Path, finals: dict[float, float], words: str) -> None:
    grid(tmp_path, finals)
    found = edge_warnings(made.compare(tmp_path))
    assert len(found) == bool(words)
    assert all(sentence.startswith(words) for sentence in found)


def test_without_validation_two_rates_are_no_grid(tmp_path: Path) -> None:
    grid(tmp_path, {0.1: 90, 0.3: 80}, validated=False)
    assert edge_warnings(made.compare(tmp_path)) == []
    grid(tmp_path, {1.0: 70}, validated=False)
    assert len(edge_warnings(made.compare(tmp_path))) == 1


def test_each_setting_is_a_line_of_its_grid(tmp_path: Path) -> None:
    """Zero is the least weight decay there is."""
    for decay, bonus in ((0.0, 2), (0.1, 1)):
        grid(tmp_path, {0.1: 70 + bonus, 0.3: 90 + bonus, 1.0: 80 + bonus}, weight_decay=decay)
    assert edge_warnings(made.compare(tmp_path)) == []
    grid(tmp_path, {0.3: 99}, weight_decay=0.2)
    (found,) = edge_warnings(made.compare(tmp_path))
    assert found.startswith("The best weight_decay of sgd, 0.2, is the largest of the 3")


def test_a_missing_rate_is_not_an_edge(tmp_path: Path) -> None:
    grid(tmp_path, {0.1: 80, 0.3: 90})
    assert edge_warnings(made.compare(tmp_path))
    planned = [made.config("sgd", lr=1.0, validation=9)]
    assert edge_warnings(made.compare(tmp_path, planned=planned)) == []

"""The demo: real runs, reproducible, and a table that shows what they gave."""

import io

import torch
from rich.console import Console

from sgdf.lab import demo


def test_the_demo_shows_what_it_measured_and_repeats_itself():
    screens = []
    for _ in range(2):
        console = Console(file=io.StringIO(), width=120)
        results = demo.run(epochs=1, console=console)
        screens.append(console.file.getvalue())
    assert screens[0] == screens[1]
    assert list(results) == ["SGDF", "SGD", "SGD-EMA", "SGD-CM", "Adam"]
    for entry in demo.ENTRIES:
        cells = results[entry.name]
        assert len(cells) == 3
        lr, outcomes = max(cells.items(), key=lambda cell: sum(o.validation for o in cell[1]))
        assert demo.spread([o.test for o in outcomes], 1) in screens[0]
        assert f"{lr:g}" in screens[0]


def test_training_learns():
    parts = demo.digits()
    assert [len(part) for part in parts] == [897, 300, 600]
    outcome = demo.train(demo.ENTRIES[0], 0.15, 0, parts, 5, lambda: None)
    assert outcome.test > 80


def test_the_demo_gives_the_threads_back():
    before = torch.get_num_threads()
    demo.run(epochs=1, console=Console(file=io.StringIO()))
    assert torch.get_num_threads() == before

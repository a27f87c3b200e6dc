"""A small fair comparison: five optimizers, handwritten digits, half a minute on two cores.

Every optimizer gets the same search: three learning rates, picked on validation images, then
judged on test images that took no part in the choice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sgdf import SGDF, Momentum

SEEDS = (0, 1, 2)
EPOCHS = 20
BATCH = 32

Params = Iterable[nn.Parameter]


@dataclass(frozen=True)
class Entry:
    """One optimizer of the comparison; `rule` is the direction of its step."""

    name: str
    rule: str
    build: Callable[[Params, float], torch.optim.Optimizer]
    learning_rates: tuple[float, ...]


# A sum with factor 0.9 is ten times an average, so SGD-CM's grid is a tenth of the others'.
ENTRIES = (
    Entry("SGDF", "m̂ + 2K(g - m̂)", SGDF, (0.05, 0.15, 0.5)),
    Entry("SGD", "g", torch.optim.SGD, (0.05, 0.15, 0.5)),
    Entry("SGD-EMA", "0.9 m + 0.1 g", lambda p, lr: Momentum(p, lr, 0.9, 0.1), (0.05, 0.15, 0.5)),
    Entry("SGD-CM", "0.9 m + g", lambda p, lr: Momentum(p, lr, 0.9, 1.0), (0.005, 0.015, 0.05)),
    Entry("Adam", "m̂ / √v̂", torch.optim.Adam, (0.0003, 0.001, 0.003)),
)


@dataclass(frozen=True)
class Part:
    """Images and labels."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Outcome:
    """Accuracies after the last epoch, in percent, and the training loss of that epoch."""

    validation: float
    test: float
    loss: float


def digits() -> tuple[Part, Part, Part]:
    """1797 images of 8x8 pixels: training, validation, test, split once and for all."""
    bunch = load_digits()
    x = torch.tensor(bunch.data, dtype=torch.float32) / 16
    y = torch.tensor(bunch.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, validation, test = (Part(x[i], y[i]) for i in order.tensor_split([897, 1197]))
    return train, validation, test


def train(
    entry: Entry,
    lr: float,
    seed: int,
    parts: tuple[Part, Part, Part],
    epochs: int,
    tick: Callable[[], None],
) -> Outcome:
    """Train a small network from weights and batches that depend on the seed alone."""
    training, validation, test = parts
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    optimizer = entry.build(model.parameters(), lr)
    total = torch.zeros(())
    for _ in range(epochs):
        total.zero_()
        for batch in torch.randperm(len(training)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(training.x[batch]), training.y[batch])
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(batch)
        tick()
    return Outcome(accuracy(model, validation), accuracy(model, test), total.item() / len(training))


@torch.no_grad()
def accuracy(model: nn.Module, part: Part) -> float:
    return 100 * (model(part.x).argmax(1) == part.y).float().mean().item()


def run(
    epochs: int = EPOCHS, console: Console | None = None
) -> dict[str, dict[float, list[Outcome]]]:
    """Train every entry with every learning rate and seed, show a table, return all outcomes."""
    console = console or Console()
    parts = digits()
    results: dict[str, dict[float, list[Outcome]]] = {}
    columns = (
        TextColumn("{task.description:20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeRemainingColumn(),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small for more
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            runs = sum(len(entry.learning_rates) for entry in ENTRIES) * len(SEEDS)
            bar = progress.add_task("", total=runs * epochs)
            for entry in ENTRIES:
                results[entry.name] = {}
                for lr in entry.learning_rates:
                    progress.update(bar, description=f"{entry.name}, lr {lr:g}")
                    results[entry.name][lr] = [
                        train(entry, lr, seed, parts, epochs, lambda: progress.advance(bar))
                        for seed in SEEDS
                    ]
    finally:
        torch.set_num_threads(threads)
    console.print(table(results, parts, epochs))
    console.print(
        "Every optimizer had three learning rates to choose from, by validation accuracy. "
        "With three seeds, differences of the size of the ± mean nothing: this is a taste, "
        "not evidence."
    )
    return results


def table(
    results: dict[str, dict[float, list[Outcome]]], parts: tuple[Part, Part, Part], epochs: int
) -> Table:
    sizes = " / ".join(str(len(part)) for part in parts)
    shown = Table(
        title=f"Digits, {sizes} images (training / validation / test), {epochs} epochs",
        caption=f"percent right and loss after the last epoch: mean ± std over {len(SEEDS)} seeds",
    )
    shown.add_column("", style="bold")
    shown.add_column("step along")
    for title in ("chosen lr", "validation", "test", "training loss"):
        shown.add_column(title, justify="right")
    for entry in ENTRIES:
        lr, outcomes = max(
            results[entry.name].items(), key=lambda cell: mean(run.validation for run in cell[1])
        )
        shown.add_row(
            entry.name,
            entry.rule,
            f"{lr:g}",
            spread([run.validation for run in outcomes], 1),
            spread([run.test for run in outcomes], 1),
            spread([run.loss for run in outcomes], 2),
        )
    return shown


def spread(values: list[float], digits: int) -> str:
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"

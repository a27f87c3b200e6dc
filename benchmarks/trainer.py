"""The overhead of the trainer over forward, backward and step, and the gain of concurrent runs.

    python benchmarks/trainer.py [--device cuda] [--models vgg11 resnet18] [--epochs 3]

`bare` is forward, backward and the optimizer's step on one fixed batch, captured and compiled as in
the trainer. `trainer` is an epoch as the lab runs it (order, augmentation, metrics, the smaller
last batch), divided by its steps. Both are measured in turns, and the medians are compared. The
images are 50,000 synthetic ones. Prints a table and writes results/bench-trainer-DEVICE.json.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from sgdf_lab import data
from sgdf_lab.data import Dataset, Split
from sgdf_lab.runs import config as configs
from sgdf_lab.support.files import write_json
from sgdf_lab.tasks.classify import resident_classifier
from sgdf_lab.training.loop import Trainer, take_turns
from timing import Bare, epoch, made_by, timed

OPTIMIZER = "sgdf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--precisions", nargs="+")
    parser.add_argument("--together", nargs="*", type=int, default=[3])
    parser.add_argument("--epochs", type=int, default=5, help="measured epochs of each")
    parser.add_argument("--images", type=int, default=0, help="default 50,000; on a CPU 2,048")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    dataset = enlarged(options.images or (50_000 if gpu else 2_048))
    rows = []
    for model in options.models or (["vgg11", "resnet18"] if gpu else ["cnn"]):
        for precision in options.precisions or (["tf32", "bf16"] if gpu else ["fp32"]):
            rows.append(alone(model, precision, dataset, device, options.epochs))
            print(rows[-1], flush=True)
            for count in options.together if gpu and model == "vgg11" else []:
                rows[-1][f"together_{count}"] = together(
                    count, model, precision, dataset, device, options.epochs
                )
                print(rows[-1], flush=True)
    show(rows)
    out = options.out or Path(f"results/bench-trainer-{device.type}.json")
    record = {
        **made_by(device),
        "images": len(dataset.train.labels),
        "rows": rows,
    }
    write_json(out, record, indent=1)
    print("wrote", out)


def enlarged(images: int) -> Dataset:
    """The synthetic dataset, repeated up to the given size."""
    small = data.load("cifar10", synthetic=True)

    def repeated(split: Split, count: int) -> Split:
        index = torch.arange(count) % len(split.labels)
        return Split(split.images[index], split.labels[index])

    return Dataset(
        name=small.name,
        train=repeated(small.train, images),
        test=repeated(small.test, images // 5),
        classes=small.classes,
        mean=small.mean,
        std=small.std,
        source=small.source,
    )


def trainer(model: str, precision: str, dataset: Dataset, device: torch.device, seed: int = 0):
    config = configs.make(
        "cifar10", model=model, optimizer=OPTIMIZER, seed=seed, precision=precision
    )
    return resident_classifier(config, dataset, device)


def alone(model: str, precision: str, dataset: Dataset, device: torch.device, epochs: int) -> dict:
    start = time.perf_counter()
    lab = trainer(model, precision, dataset, device)
    epoch(lab)
    ready = time.perf_counter() - start
    for _ in range(3):  # until every graph is captured
        epoch(lab)
    lab.metrics()
    bare = Bare(other := trainer(model, precision, dataset, device), loss_of_a_batch(other))
    steps = len(lab.sizes)
    bare(steps // 4)
    bare_ms, trainer_ms, evaluation_ms = [], [], []
    for _ in range(epochs):
        bare_ms.append(1000 * timed(lambda: bare(steps), device) / steps)
        trainer_ms.append(1000 * timed(lambda: epoch(lab), device) / steps)
        evaluation_ms.append(1000 * timed(lab.metrics, device))
    return {
        "model": model,
        "precision": precision,
        "bare_ms": bare_ms,
        "trainer_ms": trainer_ms,
        "evaluation_ms": evaluation_ms,
        "epoch_s": (median(trainer_ms) * steps + median(evaluation_ms)) / 1000,
        "first_epoch_s": ready,
    }


def together(
    count: int, model: str, precision: str, dataset: Dataset, device: torch.device, epochs: int
) -> list[float]:
    """Seconds per epoch of `count` runs that take turns, each on its own stream."""
    labs = [trainer(model, precision, dataset, device, seed) for seed in range(count)]

    def all_epochs() -> None:
        take_turns([lab.epoch() for lab in labs])
        for lab in labs:
            lab.metrics()

    for _ in range(4):
        all_epochs()
    return [timed(all_epochs, device) for _ in range(epochs)]


def loss_of_a_batch(lab: Trainer) -> Callable[[], torch.Tensor]:
    lab.batches.begin(0)
    images, labels = lab.batches.take(lab.batches.position, lab.config.batch)

    def loss() -> torch.Tensor:
        with lab._autocast():
            logits = lab.model(images)
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    return loss


def show(rows: list[dict]) -> None:
    table = Table(title="The trainer beside forward, backward and step alone (medians)")
    for name in ("model", "precision"):
        table.add_column(name)
    for name in ("bare ms", "trainer ms", "overhead", "evaluation ms", "s/epoch", "first epoch s"):
        table.add_column(name, justify="right")
    for row in rows:
        bare, trained = median(row["bare_ms"]), median(row["trainer_ms"])
        table.add_row(
            row["model"],
            row["precision"],
            f"{bare:.3f}",
            f"{trained:.3f}",
            f"{100 * (trained / bare - 1):+.1f} %",
            f"{median(row['evaluation_ms']):.1f}",
            f"{row['epoch_s']:.3f}",
            f"{row['first_epoch_s']:.1f}",
        )
    Console(width=120).print(table)
    for row in rows:
        for name in row:
            if name.startswith("together_"):
                seconds = median(row[name])
                times = f"{seconds / row['epoch_s']:.2f} times one run"
                print(f"{row['model']} {row['precision']}: {name} {seconds:.3f} s/epoch, {times}")


if __name__ == "__main__":
    main()

"""Blocks of the pages about the paper's experiments, which `pages.py` writes.

Their records are the folders of runs and the files of the instruments in results/.
"""

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpu_blocks import RESULTS, runs_of
from sgdf_lab.instruments.estimators import ErrorParts, ErrorsAtStep, EstimatorErrors, WithError
from sgdf_lab.reports import wording
from sgdf_lab.reports.comparison import ComparisonRow, compare_runs
from sgdf_lab.reports.numbers import PairedDifference, compare, outcome
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.support.pages import markdown_table


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def plain(words: str) -> str:
    return words.replace("\xa0", " ")


def span(values: Iterable[float], form: str = ".2f") -> str:
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}"


# --- 200 epochs of VGG11: docs/evidence-paper.md, docs/speed.md -----------------------------------

VGG11 = {  # titles by the labels of the report
    "sgdf": "SGDF, lr 0.5",
    "sgd, lr 0.05": "SGD with momentum, lr 0.05",
    "sgd, lr 0.1": "SGD with momentum, lr 0.1",
    **{name.lower(): name for name in (
        "AdaBelief", "MSVAG", "RAdam", "AdaBound", "Sophia-G", "Adam", "AdamW", "Lion"
    )},
}  # fmt: skip


@functools.cache
def vgg11() -> dict[str, ComparisonRow]:
    (comparison,) = compare_runs(runs_of("cifar10-vgg11"))
    return {row.label: row for row in comparison.rows}


def vgg11_table() -> str:
    rows = []
    for label, title in VGG11.items():
        row = vgg11()[label]
        published = wording.spread(row.published) if row.published else "not run"
        words = (wording.spread(row.best), wording.spread(row.final), published)
        rows.append([title, str(row.best.n if row.best else 0), *map(plain, words)])
    return markdown_table(["", "seeds", "best", "final", "published best"], rows)


def vgg11_difference(label: str) -> PairedDifference:
    """The difference of the final accuracies from SGDF's."""
    own, reference = (vgg11()[name].cell for name in (label, "sgdf"))
    return compare(*(outcome(cell.runs, cell.task.metric) for cell in (own, reference)))


def published_rate() -> str:
    d = vgg11_difference("sgd, lr 0.1")
    return f"{-d.mean:.2f} points behind SGDF (95 % interval {-d.high:.2f} to {-d.low:.2f})"


def matching_rate() -> str:
    d = vgg11_difference("sgd, lr 0.05")
    low, high = f"{-d.low:.2f} behind", f"{d.high:.2f} ahead"
    return f"{-d.mean:.2f} points behind, the interval from {low} to {high}"


def from_published() -> str:
    apart = {label: abs(row.difference) for label, row in vgg11().items() if row.difference}
    ours = apart.pop("sgdf")
    return f"{ours:.1f} points for SGDF and {max(apart.values()):.1f} for all others"


def in_short() -> str:
    """Accuracy, memory and time of four optimizers."""
    derived = "FilterAdamW", "fused, derived v"
    columns = (("SGDF", "fused"), ("SGD", "fused"), derived, ("AdamW", "fused"))

    def measured(device: str, model: str) -> dict[tuple[str, str], Any]:
        rows = read(f"bench-step-{device}.json")["lists"][model]["rows"]
        return {(r["optimizer"], r["path"]): r for r in rows if r["params_dtype"] == "fp32"}

    gpt, resnet = measured("cuda", "gpt"), measured("cpu", "resnet50")
    best = [plain(wording.spread(vgg11()[x].best)) for x in ("sgdf", "sgd, lr 0.05", "adamw")]
    small = [gpt.get((name, f"{path}, int8 state")) for name, path in columns]
    rows = [
        ["VGG11 on CIFAR-10, best test accuracy", *best[:2], "not measured", best[2]],
        ["state per parameter, float32", *(f"{gpt[c]['state_bytes']:.0f} bytes" for c in columns)],
        ["state per parameter, 8 bits",
         *(f"{row['state_bytes']:.0f} bytes" if row else "none" for row in small)],
        ["step of 1.3 billion parameters, H200", *(f"{gpt[c]['ms']:.3g} ms" for c in columns)],
        ["step of ResNet-50, 2 cores of a CPU", *(f"{resnet[c]['ms']:.3g} ms" for c in columns)],
    ]  # fmt: skip
    head = ["", "SGDF", "SGD, momentum 0.9", "FilterAdamW, derived", "AdamW"]
    return markdown_table(head, rows)


# --- other runs -----------------------------------------------------------------------------------


@functools.cache
def rates() -> dict[tuple[str, float, int], RunRecord]:
    runs = runs_of("lr-grid-cifar10-vgg11")
    return {(run.config.optimizer, run.config.lr, run.config.seed): run for run in runs}


def best_rate(optimizer: str) -> str:
    """The best final accuracy of seed 0, with its rate."""
    own = [run for (name, _, seed), run in rates().items()
           if (name, seed) == (optimizer, 0) and run.finished]  # fmt: skip
    best = max(own, key=lambda run: run.final)
    return f"{best.final:.2f} ({optimizer.upper()}, {best.config.lr:g})"


def adams_seed(seed: int) -> str:
    return f"{rates()['adam', 0.001, seed].final:.2f}"


def wgan_table() -> str:
    rows = [
        [
            {"adam": "Adam", "sgdf": "SGDF"}[run.config.optimizer],
            run.config.options.get("critic_norm", "batch"),
            f"{run.final:.2f}" if run.finished else wording.status(run),
            f"{min(run.seconds.values()):.1f}",
        ]
        for run in runs_of("wgan-gp")
    ]
    head = ["", "critic's norm", "FID by ResNet18", "seconds of the fastest epoch"]
    return markdown_table(head, sorted(rows, key=lambda row: (row[0], row[1] == "batch")))


def vit_table() -> str:
    runs = sorted(runs_of("vit-b32-random"), key=lambda run: run.config.optimizer, reverse=True)
    rows = [[run.config.optimizer.upper(), f"{run.seconds[2]:.1f}", f"{run.final:.2f}"]
            for run in runs]  # fmt: skip
    head = ["", "seconds of the second epoch, test included", "test accuracy after two epochs"]
    return markdown_table(head, rows)


# --- gradients: docs/instruments.md, docs/evidence-paper.md ---------------------------------------

EPOCHS = (2, 8, 16, 22, 24, 30)
LATE = (22, 24, 30)
SECOND_HALF = 55  # the first step of it that is measured


@functools.cache
def errors_in(name: str) -> EstimatorErrors:
    found = read(name)["errors"]
    steps = [
        ErrorsAtStep(**{**m, "errors": {key: ErrorParts(**e) for key, e in m["errors"].items()}})
        for m in found["measurements"]
    ]
    return EstimatorErrors(**{**found, "measurements": steps})


def on_few_images(name: str, since: int = 0) -> WithError:
    return errors_in("resnet18-errors/gradients-errors.json").ratio(name, since=since)


def of_epoch(epoch: int) -> EstimatorErrors:
    return errors_in(f"resnet18-errors/gradients-errors-epoch{epoch}.json")


def ratios(name: str, epochs: Iterable[int] = EPOCHS, since: int | None = None) -> list[float]:
    """An estimator's squared error over that of the average, at each epoch."""
    found = map(of_epoch, epochs)
    return [x.ratio(name, since=x.after_the_first if since is None else since).value for x in found]


def above(name: str) -> str:
    """By how much it is above the average's late in the run."""
    return f"by {span((100 * x - 100 for x in ratios(name, LATE, SECOND_HALF)), '.0f')} %"


def errors_table() -> str:
    head = ["epoch", "noise / signal", "error / signal: EMA", "SGDF", "filter / EMA", "with K",
            "with √K", "only steps 55 to 100"]  # fmt: skip
    rows = []
    for epoch in EPOCHS:
        found = of_epoch(epoch)
        since = found.after_the_first
        later = [m for m in found.measurements if m.step >= since]
        noise = sum(m.noise for m in later) / sum(m.signal for m in later)
        shares = (found.relative(name, since).value for name in ("ema", "sgdf"))
        names = ("sgdf", "sgdf-k", "sgdf-root")
        rows.append([
            str(epoch),
            *(f"{x:.2f}" for x in (noise, *shares)),
            *(f"{found.ratio(name, since=since).value:.3f}" for name in names),
            f"{found.ratio('sgdf', since=SECOND_HALF).value:.2f}",
        ])  # fmt: skip
    return markdown_table(head, rows)


def outlier() -> dict[str, str]:
    """Norms and the mean gain in steps 29 and 30 of the first steps."""
    steps = read("resnet18-gradients/gradients.json")["records"]["sgdf"]["rows"][28:30]
    gains = [np.mean([layer[0] for layer in row["gain"]]) for row in steps]
    return {
        "raw norm": " to ".join(f"{row['raw_norm']:.1f}" for row in steps),
        "gain": " to ".join(f"{gain:.2f}" for gain in gains),
        "norm of the estimate": " to ".join(f"{row['estimated_norm']:.1f}" for row in steps),
    }


# --- six trained networks -------------------------------------------------------------------------

SIX = {  # titles by optimizer and rate
    ("sgdf", 0.5): "SGDF, lr 0.5",
    ("sgd", 0.5): "SGD without momentum, lr 0.5",
    ("sgd", 0.05): "SGD with momentum, lr 0.05",
    ("sgd", 0.1): "SGD with momentum, lr 0.1",
    ("sgd-ema", 0.5): "SGD-EMA, lr 0.5",
    ("adam", 0.001): "Adam, lr 0.001",
}


@functools.cache
def six() -> dict[str, dict[str, Any]]:
    """Accuracy, spectrum and the share of the plane below 1, by title."""
    found = {}
    for run in runs_of("cifar10-resnet18"):
        with np.load(RESULTS / "resnet18-landscape" / f"landscape-{run.config.name}.npz") as plane:
            below = 100 * float((plane["values"] < 1).mean())
        spectrum = read(f"resnet18-hessian/hessian-{run.config.name}.json")
        key = run.config.optimizer, run.config.lr
        found[SIX[key]] = {**spectrum, "accuracy": run.final, "below": below}
    return {title: found[title] for title in SIX.values()}


def six_table() -> str:
    rows = [
        [
            title,
            f"{x['accuracy']:.2f}",
            f"{x['eigenvalues'][0]:.1f}",
            f"{x['eigenvalues'][-1]:.2f}",
            f"{x['trace']:.0f} ± {x['trace_standard_error']:.0f}",
            f"{x['below']:.0f} %",
        ]
        for title, x in six().items()
    ]
    head = ["", "final test accuracy", "λ max", "50th", "trace", "loss below 1 in"]
    return markdown_table(head, rows)


def curvature() -> str:
    """Trace and largest eigenvalue of SGDF, the range of SGD's kind, and Adam."""
    all_six = dict(six())
    ours, adam = (all_six.pop(SIX[key]) for key in (("sgdf", 0.5), ("adam", 0.001)))
    traces = span((x["trace"] for x in all_six.values()), ".0f")
    largest = span((x["eigenvalues"][0] for x in all_six.values()), ".1f")
    return (
        f"trace {ours['trace']:.0f} and largest eigenvalue {ours['eigenvalues'][0]:.1f}; SGD and "
        f"SGD-EMA {traces} and {largest}, Adam {adam['trace']:.0f} and {adam['eigenvalues'][0]:.1f}"
    )


def shares_of_the_trace() -> str:
    return span((100 * sum(x["eigenvalues"]) / x["trace"] for x in six().values()), ".0f")


def words_of(number: WithError, digits: int) -> str:
    return f"{number.value:.{digits}f} ± {number.error:.2f}"


BLOCKS: dict[str, Callable[[], str]] = {
    "in short": in_short,
    "VGG11": vgg11_table,
    "VGG11, published rate": published_rate,
    "VGG11, matching rate": matching_rate,
    "VGG11, from published": from_published,
    "VGG11, seed 0": lambda: f"{vgg11()['sgdf'].cell.finished[0].best:.2f}",
    "VGG11, bf16": lambda: " and ".join(f"{r.best:.2f}" for r in runs_of("cifar10-vgg11-bf16")),
    "rates, SGDF": lambda: best_rate("sgdf"),
    "rates, SGD": lambda: best_rate("sgd"),
    **{f"rates, Adam, seed {n}": functools.partial(adams_seed, n) for n in range(3)},
    "WGAN-GP": wgan_table,
    "ViT": vit_table,
    "ViT, seconds": lambda: f"{max(run.seconds[2] for run in runs_of('vit-b32-random')):.1f}",
    **{f"outlier, {name}": lambda name=name: outlier()[name]  # type: ignore[misc]
       for name in ("raw norm", "gain", "norm of the estimate")},
    "errors by epoch": errors_table,
    "errors, filter": lambda: span(ratios("sgdf")),
    "errors, root": lambda: span(ratios("sgdf-root")),
    "errors, below": lambda: f"by {span((100 - 100 * x for x in ratios('sgdf')), '.0f')} %",
    "errors, late": lambda: above("sgdf"),
    "errors, late root": lambda: above("sgdf-root"),
    "few images, filter": lambda: f"{on_few_images('sgdf').value:.2f}",
    "few images, filter late": lambda: words_of(on_few_images("sgdf", 30), 1),
    "few images, K late": lambda: words_of(on_few_images("sgdf-k", 30), 2),
    "few images, K": lambda: f"{on_few_images('sgdf-k').value:.2f}",
    "few images, root late": lambda: f"{on_few_images('sgdf-root', 30).value:.1f}",
    "few images, root": lambda: f"{on_few_images('sgdf-root').value:.2f}",
    "six networks": six_table,
    "six networks, curvature": curvature,
    "six networks, trace": shares_of_the_trace,
}  # fmt: skip

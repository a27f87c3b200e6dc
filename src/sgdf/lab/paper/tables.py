"""The paper's tables as data: results, settings, searches, and where they disagree.

A `label` or `source` such as ``tab:cifar_values`` is the paper's own name of a table or figure.
Optimizers go by the lab's names, settings by those of the constructors. `paper.py` answers
questions about all this.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# --- results ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """A published number; `note` says when another paper is its source."""

    mean: float
    std: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Results by optimizer and column, and what a reader has to know about them."""

    name: str
    label: str
    title: str
    metric: str
    rows: Mapping[str, Mapping[str, Value]]
    lower_is_better: bool = False
    notes: tuple[str, ...] = ()


CELL = re.compile(r"(?P<mean>[\d.]+)(?:±(?P<std>[\d.]+))?(?P<mark>[*†‡]?)")


def _rows(
    columns: str, rows: Mapping[str, str], marks: Mapping[str, str] | None = None
) -> dict[str, dict[str, Value]]:
    """Cells as the paper prints them: ``91.76±0.11``, ``70.23†`` with a footnote, ``-``."""
    table: dict[str, dict[str, Value]] = {}
    for optimizer, text in rows.items():
        table[optimizer] = {}
        for column, cell in zip(columns.split(), text.split(), strict=True):
            if found := CELL.fullmatch(cell):
                std = float(found["std"]) if found["std"] else None
                note = (marks or {})[found["mark"]] if found["mark"] else ""
                table[optimizer][column] = Value(float(found["mean"]), std, note)
            elif cell != "-":
                raise ValueError(f"{optimizer}, {column}: {cell!r}")
    return table


# A column is task/model wherever it can be, so that `paper.published` finds it.
_TABLES = (
    Table(
        name="cifar",
        label="tab:cifar_values",
        title="CIFAR-10 and CIFAR-100",
        metric="best test accuracy over the epochs, %",
        rows=_rows(
            "cifar10/vgg11 cifar10/resnet34 cifar10/densenet121 "
            "cifar100/vgg11 cifar100/resnet34 cifar100/densenet121",
            {
                "sgdf": "91.76±0.11 95.29±0.09 95.63±0.04 68.29±0.15 77.80±0.18 80.33±0.24",
                "sgd": "89.83±0.05 94.62±0.07 94.52±0.03 63.48±0.39 76.88±0.12 78.77±0.27",
                "adam": "88.12±0.10 94.30±0.06 94.37±0.17 56.27±0.32 72.81±0.45 74.67±0.45",
                "adamw": "88.59±0.20 94.42±0.00 94.61±0.06 58.09±0.69 72.74±0.45 74.96±0.10",
                "radam": "90.47±0.34 93.41±0.21 93.75±0.04 60.20±0.37 74.08±0.35 75.82±0.28",
                "msvag": "90.08±0.13 94.79±0.08 95.01±0.12 61.55±0.23 75.75±0.06 76.84±0.13",
                "lion": "88.04±0.06 93.97±0.10 94.26±0.02 55.59±0.15 72.79±0.14 73.41±0.10",
                "sophia-g": "88.53±0.04 94.15±0.26 94.53±0.13 58.01±1.85 72.83±0.18 75.81±0.23",
                "adabound": "90.41±0.12 94.93±0.12 95.06±0.13 64.51±0.15 76.37±0.29 77.43±0.18",
                "adabelief": "91.24±0.04 95.18±0.01 95.44±0.04 67.59±0.03 77.47±0.34 79.20±0.16",
            },
        ),
        notes=(
            "Three runs, seeds 0, 1, 2. The ± agrees with the authors' curves only if it is the "
            "deviation with n in the denominator; with n - 1 it is 1.22 times as large.",
            "SGD has momentum 0.9 here; in the figures SGD is without momentum, and SGD-CM "
            "is what this table calls SGD.",
        ),
    ),
    Table(
        name="wiener-adam",
        label="tab:accuracy_comparison",
        title="Adam with and without the Wiener filter, CIFAR-100",
        metric="test accuracy, %",
        rows=_rows(
            "cifar100/vgg11 cifar100/resnet34 cifar100/densenet121",
            {"filter-adam": "62.64 73.98 74.89", "adam": "56.73 72.34 74.89"},
        ),
        notes=(
            "Adam's numbers are of one run, the best of the authors' curves of seed 0; its means "
            "over three seeds in tab:cifar_values are 56.27, 72.81 and 74.67.",
            "Both optimizers have the same 74.89 on DenseNet121, and both are in bold.",
        ),
    ),
    Table(
        name="imagenet-resnet18",
        label="tab:resnet18_imagenet",
        title="ResNet18 on ImageNet",
        metric="top-1 and top-5 accuracy, %",
        rows=_rows(
            "imagenet/resnet18 imagenet/resnet18/top-5",
            {
                "sgdf": "70.55 89.76",
                "sgd": "70.23† 89.40†",
                "adabelief": "70.08* -",
                "padam": "70.07† 89.47†",
                "adabound": "68.13† 88.55†",
                "yogi": "68.23† 88.59†",
                "msvag": "65.99* -",
                "adam": "63.79† 85.61†",
                "radam": "67.62‡ -",
                "adamw": "67.93† 88.47†",
            },
            {
                "*": "reported by the AdaBelief paper",
                "†": "reported by the Padam paper",
                "‡": "reported by the RAdam paper",
            },
        ),
        notes=(
            "All but SGDF's are from other papers; SGDF's is of one seed, with a cosine schedule.",
            "For Adam's top-1 the RAdam paper reports 66.54.",
        ),
    ),
    Table(
        name="imagenet",
        label="tab:more_imagenet",
        title="More networks on ImageNet",
        metric="top-1 accuracy, %",
        rows=_rows(
            "imagenet/vgg11-bn imagenet/vgg13-bn imagenet/resnet34 imagenet/resnet50 "
            "imagenet/densenet121 imagenet/densenet161",
            {
                "sgd": "70.37† 71.58† 73.31† 76.13† 74.43† 77.13†",
                "sgdf": "71.47 72.54 74.03 76.65 75.78 78.44",
            },
            {"†": "of torchvision's pretrained weights"},
        ),
        notes=(
            "SGD was not run for the paper: its numbers are those of torchvision's weights "
            "(71.586 and 77.138, cut to two digits), not of tab:imagenethyperparameters.",
        ),
    ),
    Table(
        name="voc",
        label="tab:object_detection",
        title="Faster-RCNN with FPN on PASCAL VOC",
        metric="mAP, %",
        rows=_rows(
            "voc/fasterrcnn",
            {
                "sgdf": "83.81",
                "adabelief": "81.02*",
                "eadam": "80.62†",
                "sgd": "80.43",
                "adam": "78.67",
                "adamw": "78.48",
                "radam": "75.21",
            },
            {"*": "reported by the AdaBelief paper", "†": "reported by the EAdam paper"},
        ),
        notes=("The number of runs is not given, nor a deviation.",),
    ),
    Table(
        name="vit",
        label="tab:vitresult",
        title="Fine-tuning ViT-B/32 and ViT-L/32",
        metric="top-1 accuracy, %",
        rows=_rows(
            "finetune-cifar10/vit-b32 finetune-cifar100/vit-b32 finetune-pets/vit-b32 "
            "finetune-flowers102/vit-b32 finetune-food101/vit-b32 finetune-imagenet/vit-b32 "
            "finetune-cifar10/vit-l32 finetune-cifar100/vit-l32 finetune-pets/vit-l32 "
            "finetune-flowers102/vit-l32 finetune-food101/vit-l32 finetune-imagenet/vit-l32",
            {
                "sgd": "98.60 89.72 90.26 96.71 87.79 81.30 98.74 91.51 86.09 96.68 89.23 81.21",
                "sgdf": "98.64 90.77 92.34 96.92 88.68 81.40 98.87 92.14 91.98 97.02 90.05 81.31",
            },
        ),
        notes=(
            "One run each, from weights of ImageNet-21k. On Pets and ImageNet the larger network "
            "is behind the smaller one with both optimizers, with SGD on Pets by 4.17 points.",
        ),
    ),
    Table(
        name="wgan-gp",
        label="tab:fid-wgan-gp",
        title="WGAN-GP",
        metric="FID",
        lower_is_better=True,
        rows=_rows(
            "wgan-gp/dcgan",
            {
                "sgdf": "89.3±4.9",
                "adam": "78.6±4.8",
                "rmsprop": "109.2±14.5",
                "radam": "93.4±8.3",
                "fromage": "101.5±28.9",
                "yogi": "138.7±21.2",
                "adabound": "119.8±24.6",
                "sgd": "250.3±30.1*",
                "msvag": "239.7±5.2*",
            },
            {"*": "reported by the AdaBelief paper"},
        ),
        notes=(
            "Five runs; the seeds, the data set and the network are not given.",
            "The text says that SGDF's FID is higher than SGD's; it is lower, which is better.",
            "AdamW has settings but no result; SGD and MSVAG have results but no settings.",
        ),
    ),
    Table(
        name="hessian",
        label="fig:hessian_spectrum",
        title="Hessian of ResNet18 trained on CIFAR-100 for 200 epochs",
        metric="trace and largest eigenvalue",
        lower_is_better=True,
        rows=_rows(
            "trace largest",
            {
                "sgdf": "192.47 13.32",
                "sgd": "419.30 22.51",
                "sgd-ema": "284.38 24.11",
                "sgd-cm": "491.63 32.61",
                "adabelief": "427.72 28.38",
                "adam": "3970.98 330.04",
                "adamw": "0.39 0.11",
                "radam": "1927.24 180.98",
            },
        ),
        notes=(
            "SGD stands beside SGD-CM here: it is without momentum.",
            "AdamW's are by far the lowest, and its accuracy about 4 points below the others'.",
        ),
    ),
)
TABLES = {table.name: table for table in _TABLES}

# --- settings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """Keyword arguments of an optimizer, where they come from, and what speaks against them."""

    settings: Mapping[str, Any]
    source: str
    note: str = ""

    @property
    def published(self) -> bool:
        return not self.source.startswith("ours")


def _set(source: str, note: str = "", **settings: Any) -> Recipe:
    return Recipe(settings, source, note)


SETTINGS_LABELS = {
    "cifar": "tab:cifarhyperparameters",
    "imagenet": "tab:imagenethyperparameters",
    "voc": "tab:hyperparameters_object_detection",
    "vit": "tab:vithyperparameters",
    "wgan-gp": "tab:image_generation_hyperparameters",
}
_CIFAR, _IMAGENET, _VOC, _VIT, _WGAN = SETTINGS_LABELS.values()
_USUAL, _HALF = (0.9, 0.999), (0.5, 0.999)

# By task; CIFAR's has a recipe for every optimizer but those that borrow another's (BORROWED).
RECIPES: dict[str, dict[str, Recipe]] = {
    "cifar": {
        "sgdf": _set(_CIFAR, lr=0.5, betas=_USUAL, eps=1e-8, weight_decay=5e-4),
        "sgd": _set(_CIFAR, lr=0.1, momentum=0.9, weight_decay=5e-4),
        "adam": _set(_CIFAR, lr=1e-3, betas=_USUAL, eps=1e-8, weight_decay=5e-4),
        "radam": _set(_CIFAR, lr=1e-3, betas=_USUAL, eps=1e-8, weight_decay=5e-4),
        "adamw": _set(
            _CIFAR,
            "The authors' published curves ran with weight_decay=5e-4, and in four of the six "
            "cells their best is too far from the table's mean to be one of its three runs.",
            lr=1e-3,
            betas=_USUAL,
            eps=1e-8,
            weight_decay=0.01,
        ),
        "msvag": _set(_CIFAR, lr=0.1, betas=_USUAL, eps=1e-8, weight_decay=5e-4),
        "adabound": _set(
            _CIFAR,
            "final_lr and gamma are those of the authors' published curves; the table has neither.",
            lr=1e-3,
            betas=_USUAL,
            final_lr=0.1,
            gamma=1e-3,
            weight_decay=5e-4,
        ),
        "sophia-g": _set(
            _CIFAR,
            "rho is that of the authors' published curves; the table has none. The text says "
            "weight decay 5e-4.",
            lr=1e-4,
            betas=(0.965, 0.99),
            rho=0.04,
            weight_decay=0.1,
        ),
        "lion": _set(
            _CIFAR,
            "The text says weight decay 5e-4 and a search that does not contain this rate.",
            lr=2e-5,
            betas=(0.9, 0.99),
            weight_decay=0.1,
        ),
        "adabelief": _set(
            "the authors' published curves",
            "The table of settings leaves AdaBelief out.",
            lr=1e-3,
            betas=_USUAL,
            eps=1e-8,
            weight_decay=5e-4,
        ),
        "sgd-cm": _set(
            "fig:accuracy",
            "The caption gives the learning rate, the text the factors 0, 0.5 and 0.9; the weight "
            "decay is SGD's.",
            lr=0.1,
            beta=0.9,
            weight_decay=5e-4,
        ),
        "sgd-ema": _set(
            "fig:accuracy",
            "The caption gives the learning rate; the factor and the weight decay are SGD's.",
            lr=0.1,
            beta=0.9,
            weight_decay=5e-4,
        ),
        "padam": _set(
            "ours: the learning rate of the Padam paper",
            lr=0.1,
            betas=_USUAL,
            eps=1e-8,
            weight_decay=5e-4,
        ),
        "yogi": _set(
            "ours: Yogi's usual rate and eps",
            "The paper has Yogi for WGAN-GP alone, with lr=0.01 and eps=1e-8.",
            lr=0.01,
            betas=_USUAL,
            eps=1e-3,
            weight_decay=5e-4,
        ),
        "fromage": _set(
            "ours: Fromage's usual rate",
            "The paper has Fromage for WGAN-GP alone, with the same rate.",
            lr=0.01,
        ),
        "rmsprop": _set(
            "ours: Adam's rate",
            "The paper has RMSProp for WGAN-GP alone, with Adam's rate there.",
            lr=1e-3,
            alpha=0.99,
            eps=1e-8,
            weight_decay=5e-4,
        ),
    },
    "imagenet": {
        "sgdf": _set(
            _IMAGENET,
            "The text says that beta1=0.9 is ahead of SGD too; it shows no number for it.",
            lr=0.5,
            betas=_HALF,
            eps=1e-8,
            weight_decay=1e-4,
        ),
        "sgd": _set(
            _IMAGENET,
            "The text says lr=0.5. The results of SGD in the tables are other people's.",
            lr=0.1,
            momentum=0.9,
            weight_decay=1e-4,
        ),
    },
    "voc": {
        "sgdf": _set(_VOC, lr=0.01, betas=_USUAL, eps=1e-8, weight_decay=1e-4),
        "sgd": _set(_VOC, lr=0.01, momentum=0.9, weight_decay=1e-4),
        "adam": _set(_VOC, lr=1e-4, betas=_USUAL, eps=1e-8, weight_decay=1e-4),
        "adamw": _set(_VOC, lr=1e-4, betas=_USUAL, eps=1e-8, weight_decay=1e-4),
        "radam": _set(_VOC, lr=1e-4, betas=_USUAL, eps=1e-8, weight_decay=1e-4),
    },
    "vit": {
        "sgdf": _set(
            _VIT,
            "Said to be CIFAR's settings, untuned; but without their weight decay.",
            lr=0.5,
            betas=_USUAL,
            eps=1e-8,
            weight_decay=0.0,
        ),
        "sgd": _set(
            _VIT,
            "The highest of the rates searched: 0.001, 0.003, 0.01, 0.03.",
            lr=0.03,
            momentum=0.9,
            weight_decay=0.0,
        ),
    },
    "wgan-gp": {
        "sgdf": _set(_WGAN, lr=0.01, betas=_HALF, eps=1e-8),
        "adam": _set(_WGAN, lr=2e-4, betas=_HALF, eps=1e-8),
        "adamw": _set(
            _WGAN,
            "The table has no weight decay: AdamW's own default holds.",
            lr=2e-4,
            betas=_HALF,
            eps=1e-8,
        ),
        "fromage": _set(
            _WGAN, "The table also gives betas (0.5, 0.999) and eps: Fromage has none.", lr=0.01
        ),
        "rmsprop": _set(
            _WGAN,
            "alpha is the table's beta2; its beta1 of 0.5 has no place in RMSProp.",
            lr=2e-4,
            alpha=0.999,
            eps=1e-8,
        ),
        "adabound": _set(_WGAN, lr=2e-4, betas=_HALF, eps=1e-8),
        "yogi": _set(_WGAN, lr=0.01, betas=_HALF, eps=1e-8),
        "radam": _set(_WGAN, lr=2e-4, betas=_HALF, eps=1e-8),
        "sgd": _set(
            "ours: the defaults of the AdaBelief paper's public code",
            "The FID is the AdaBelief paper's, which does not give the rate; there SGD is "
            "without momentum.",
            lr=2e-4,
            momentum=0.0,
        ),
        "msvag": _set(
            "ours: the defaults of the AdaBelief paper's public code",
            "The FID is the AdaBelief paper's, which does not give the rate.",
            lr=2e-4,
            betas=_HALF,
        ),
    },
}

# Who takes whose settings where a task has none of its own.
BORROWED = {
    "filter-adam": "adam",
    "filter-adamw": "adamw",
    "eadam": "adam",
    "adabelief": "adam",
    "sgd-cm": "sgd",
    "sgd-ema": "sgd",
}

# --- protocols and searches ---------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """How the runs of a task are made; gamma takes effect when `milestones` epochs are behind."""

    epochs: int
    batch: int
    seeds: tuple[int, ...]
    schedule: str
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    clip: float | None = None
    note: str = ""


PROTOCOLS: dict[str, Protocol] = {
    "cifar": Protocol(200, 128, (0, 1, 2), "step", milestones=(150,)),
    "imagenet": Protocol(90, 256, (2025,), "cosine", note="100 epochs for ResNet18"),
    "imagenet/resnet18": Protocol(100, 256, (2025,), "cosine"),
    "voc": Protocol(4, 2, (0,), "step", milestones=(3,), note="the paper gives no seed"),
    "vit": Protocol(10, 512, (2025,), "cosine", clip=1.0, note="images of 384 x 384 pixels"),
    "wgan-gp": Protocol(
        100, 64, (0, 1, 2, 3, 4), "constant", note="five runs; the paper gives no seeds or schedule"
    ),
}


@dataclass(frozen=True)
class Search:
    """What the paper tried for an optimizer on CIFAR; an empty grid was not searched."""

    lr: tuple[float, ...]
    beta1: tuple[float, ...] = ()
    weight_decay: tuple[float, ...] = ()
    note: str = ""

    @property
    def trials(self) -> int:
        """Settings in the full grid, if the full grid was run: the paper does not say."""
        return math.prod(len(grid) or 1 for grid in (self.lr, self.beta1, self.weight_decay))


_RATES = (10.0, 1.0, 0.5, 0.1, 0.01, 0.001)
_SMALL_RATES = (1e-3, 1e-4, 1e-5)
_BETAS1 = (0.5, 0.6, 0.7, 0.8, 0.9)
_ADAM = Search(_RATES, _BETAS1)
_OWN_BETAS = "The text also counts it among those searched like Adam, beta1 and all."

SEARCHES: dict[str, Search] = {
    "sgdf": Search(_RATES),
    "sgd": Search(_RATES, note="0.05, the effective step of SGDF's 0.5, is not among the rates."),
    "adam": _ADAM,
    "radam": _ADAM,
    "msvag": _ADAM,
    "adabound": _ADAM,
    "adabelief": _ADAM,
    "adamw": Search(_RATES, _BETAS1, (1e-4, 5e-4, 1e-3, 1e-2, 1e-1)),
    "sophia-g": Search(_SMALL_RATES, note=_OWN_BETAS),
    "lion": Search(_SMALL_RATES, note=_OWN_BETAS + " The rate used, 2e-5, was adjusted after."),
}

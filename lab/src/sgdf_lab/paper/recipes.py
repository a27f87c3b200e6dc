"""How the paper trained: settings of the optimizers, protocols, searches; and where it disagrees.

A `source` such as ``tab:cifarhyperparameters`` is the paper's own name of a table or figure.
Optimizers have the lab's names, settings those of the constructors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sgdf_lab.support.errors import unknown

CIFAR = ("cifar10", "cifar100")

# --- the data: settings ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """Keyword arguments of an optimizer, where they come from, and what contradicts them."""

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

# By task. CIFAR's have every optimizer but some that take another's settings (BORROWED).
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
            "The paper has Yogi for WGAN-GP only, with lr=0.01 and eps=1e-8.",
            lr=0.01,
            betas=_USUAL,
            eps=1e-3,
            weight_decay=5e-4,
        ),
        "fromage": _set(
            "ours: Fromage's usual rate",
            "The paper has Fromage for WGAN-GP only, with the same rate.",
            lr=0.01,
        ),
        "rmsprop": _set(
            "ours: Adam's rate",
            "The paper has RMSProp for WGAN-GP only, with Adam's rate there.",
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
            "According to the text CIFAR's settings, untuned; but these have no weight decay.",
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

# Whose settings an optimizer takes on a task for which it has none.
BORROWED = {
    "filter-adam": "adam",
    "filter-adamw": "adamw",
    "eadam": "adam",
    "adabelief": "adam",
    "sgd-cm": "sgd",
    "sgd-ema": "sgd",
}

# --- the data: protocols and searches -------------------------------------------------------------


@dataclass(frozen=True)
class TrainingProtocol:
    """How a task is trained; the learning rate is multiplied by gamma after each milestone."""

    epochs: int
    batch: int
    seeds: tuple[int, ...]
    schedule: str
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    clip: float | None = None
    note: str = ""


PROTOCOLS: dict[str, TrainingProtocol] = {
    "cifar": TrainingProtocol(200, 128, (0, 1, 2), "step", milestones=(150,)),
    "imagenet": TrainingProtocol(90, 256, (2025,), "cosine", note="100 epochs for ResNet18"),
    "imagenet/resnet18": TrainingProtocol(100, 256, (2025,), "cosine"),
    "voc": TrainingProtocol(4, 2, (0,), "step", milestones=(3,), note="the paper gives no seed"),
    "vit": TrainingProtocol(
        10, 512, (2025,), "cosine", clip=1.0, note="images of 384 x 384 pixels"
    ),
    "wgan-gp": TrainingProtocol(
        100, 64, (0, 1, 2, 3, 4), "constant", note="five runs; the paper gives no seeds or schedule"
    ),
}


@dataclass(frozen=True)
class Search:
    """The grids searched by the paper for an optimizer on CIFAR; an empty one was not searched."""

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
_OWN_BETAS = "According to the text it was also searched like Adam, with beta1."

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
    "lion": Search(_SMALL_RATES, note=_OWN_BETAS + " The rate used, 2e-5, was adjusted later."),
}

OPTIMIZERS = tuple(sorted(RECIPES["cifar"].keys() | BORROWED.keys()))
LEARNING_RATES = {optimizer: search.lr for optimizer, search in SEARCHES.items()}

# --- by task and optimizer ------------------------------------------------------------------------


def family(task: str) -> str:
    """The key of a task in RECIPES and PROTOCOLS: related tasks share all settings."""
    if task.startswith("finetune-"):
        return "vit"
    return "cifar" if task in CIFAR else task


def settings(task: str, optimizer: str) -> dict[str, Any]:
    """Keyword arguments of the optimizer for that task; `recipe` says where they come from."""
    return dict(recipe(task, optimizer).settings)


def recipe(task: str, optimizer: str) -> Recipe:
    """The published settings, or the nearest ones, with their source.

    An optimizer that the paper did not run on a task takes the settings of its closest relative
    there, or else its own of CIFAR with the weight decay of the task. Tasks that are not in the
    paper take CIFAR's.
    """
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    own = RECIPES.get(family(task), {})
    if optimizer in own:
        return own[optimizer]
    lender = BORROWED.get(optimizer)
    if lender in own:
        return borrow(own[lender], lender)
    return adapt_cifar(optimizer, own)


def borrow(row: Recipe, lender: str) -> Recipe:
    """Another optimizer's settings; torch's SGD calls momentum what the lab calls beta."""
    values = {("beta" if key == "momentum" else key): value for key, value in row.settings.items()}
    return replace(row, settings=values, source=f"ours: {lender}'s of {row.source}")


def adapt_cifar(optimizer: str, own: Mapping[str, Recipe]) -> Recipe:
    """CIFAR's settings with the weight decay of another task, which all its `own` recipes share."""
    row = recipe("cifar10", optimizer)
    values = dict(row.settings)
    if own and "weight_decay" in values:
        values["weight_decay"] = own["sgdf"].settings.get("weight_decay", 0.0)
    source = f"ours: CIFAR's, {row.source.removeprefix('ours: ')}"
    return replace(row, settings=values, source=source)


def protocol(task: str, model: str = "") -> TrainingProtocol:
    """How the paper trained on one of its tasks; some models have a protocol of their own."""
    name = family(task)
    if name not in PROTOCOLS:
        known = [name for name in PROTOCOLS.keys() - {"cifar"} if "/" not in name]
        raise unknown("task of the paper", task, [*CIFAR, *known])
    return PROTOCOLS.get(f"{name}/{model}", PROTOCOLS[name])

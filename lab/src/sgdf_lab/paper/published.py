"""What the paper published: results, settings of the optimizers, protocols, searches.

A `source` such as ``tab:cifarhyperparameters`` is the paper's own name of a table or figure.
Optimizers have the lab's names, settings those of the constructors.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from sgdf_lab.support.errors import unknown

CIFAR = ("cifar10", "cifar100")

# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedValue:
    """A published number; `note` says when another paper is its source."""

    mean: float
    std: float | None = None
    note: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """Results by optimizer and column; `label` is the paper's own name of it."""

    name: str
    label: str
    title: str
    metric: str
    rows: Mapping[str, Mapping[str, PublishedValue]]
    lower_is_better: bool = False
    notes: tuple[str, ...] = ()


ENTRY = re.compile(r"(?P<mean>[\d.]+)(?:±(?P<std>[\d.]+))?(?P<mark>[*†‡]?)")


def _table(name: str, words: dict[str, Any]) -> PublishedTable:
    columns, marks = words.pop("columns"), words.pop("marks", {})
    rows = {
        optimizer: {
            column: _value(entry, marks)
            for column, entry in zip(columns, entries.split(), strict=True)
            if entry != "-"
        }
        for optimizer, entries in words.pop("rows").items()
    }
    return PublishedTable(name, rows=rows, notes=tuple(words.pop("notes", ())), **words)


def _value(entry: str, marks: Mapping[str, str]) -> PublishedValue:
    """Parse an entry as the paper prints it: ``91.76±0.11``, or ``70.23†`` with a mark."""
    match = ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not an entry of a table")
    std, mark = match["std"], match["mark"]
    return PublishedValue(
        float(match["mean"]), float(std) if std else None, marks[mark] if mark else ""
    )


_PUBLISHED = tomllib.loads(files("sgdf_lab.paper").joinpath("tables.toml").read_text("utf-8"))
TABLES = {name: _table(name, words) for name, words in _PUBLISHED["tables"].items()}
TITLES: dict[str, str] = _PUBLISHED["titles"]


def published(task: str, model: str, optimizer: str, part: str = "") -> PublishedValue | None:
    """The paper's number, from the first table that has it: means over seeds come first.

    `part` is the last word of a column of another metric: "top-5".
    """
    column = "/".join(filter(None, (task, model, part)))
    for table in TABLES.values():
        if value := table.rows.get(optimizer, {}).get(column):
            return value
    return None


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """Keyword arguments of an optimizer, where they come from, and what contradicts them."""

    settings: Mapping[str, Any]
    source: str
    note: str = ""


#: By task: the table that its settings are from, unless recipes.toml names another source.
SETTINGS_LABELS = {
    "cifar": "tab:cifarhyperparameters",
    "imagenet": "tab:imagenethyperparameters",
    "voc": "tab:hyperparameters_object_detection",
    "vit": "tab:vithyperparameters",
    "wgan-gp": "tab:image_generation_hyperparameters",
}


def _recipe(task: str, settings: Mapping[str, Any], source: str = "", note: str = "") -> Recipe:
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    return Recipe(values, source or SETTINGS_LABELS[task], note)


_WRITTEN = tomllib.loads(files("sgdf_lab.paper").joinpath("recipes.toml").read_text("utf-8"))
RECIPES: dict[str, dict[str, Recipe]] = {
    task: {optimizer: _recipe(task, **row) for optimizer, row in rows.items()}
    for task, rows in _WRITTEN.items()
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

# --- protocols and searches -----------------------------------------------------------------------


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


PROTOCOLS: dict[str, TrainingProtocol] = {
    "cifar": TrainingProtocol(200, 128, (0, 1, 2), "step", milestones=(150,)),
    "imagenet": TrainingProtocol(90, 256, (2025,), "cosine"),
    "imagenet/resnet18": TrainingProtocol(100, 256, (2025,), "cosine"),
    "voc": TrainingProtocol(4, 2, (0,), "step", milestones=(3,)),  # the paper gives no seed
    "vit": TrainingProtocol(10, 512, (2025,), "cosine", clip=1.0),
    # Five runs; the paper gives neither seeds nor a schedule.
    "wgan-gp": TrainingProtocol(100, 64, (0, 1, 2, 3, 4), "constant"),
}


@dataclass(frozen=True)
class Search:
    """The grids searched by the paper for an optimizer on CIFAR; an empty one was not searched."""

    lr: tuple[float, ...]
    beta1: tuple[float, ...] = ()
    weight_decay: tuple[float, ...] = ()

    @property
    def trials(self) -> int:
        """Settings in the full grid, if the full grid was run: the paper does not say."""
        return math.prod(len(grid) or 1 for grid in (self.lr, self.beta1, self.weight_decay))


_RATES = (10.0, 1.0, 0.5, 0.1, 0.01, 0.001)
_SMALL_RATES = (1e-3, 1e-4, 1e-5)
_BETAS1 = (0.5, 0.6, 0.7, 0.8, 0.9)
_ADAM = Search(_RATES, _BETAS1)

SEARCHES: dict[str, Search] = {
    "sgdf": Search(_RATES),
    "sgd": Search(_RATES),  # 0.05, the effective step of SGDF's 0.5, is not among them
    "adam": _ADAM,
    "radam": _ADAM,
    "msvag": _ADAM,
    "adabound": _ADAM,
    "adabelief": _ADAM,
    "adamw": Search(_RATES, _BETAS1, (1e-4, 5e-4, 1e-3, 1e-2, 1e-1)),
    # According to the text these two were also searched like Adam, with beta1.
    "sophia-g": Search(_SMALL_RATES),
    "lion": Search(_SMALL_RATES),  # the rate used, 2e-5, was adjusted later
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

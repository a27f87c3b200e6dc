"""What the paper published, and what it takes to run its experiments again.

>>> published("cifar10", "vgg11", "sgdf")
Value(mean=91.76, std=0.11, note='')
>>> settings("cifar10", "sgd")
{'lr': 0.1, 'momentum': 0.9, 'weight_decay': 0.0005}
>>> recipe("cifar10", "filter-adam").source
"ours: adam's of tab:cifarhyperparameters"
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sgdf.lab.paper.tables import (
    BORROWED,
    PROTOCOLS,
    RECIPES,
    SEARCHES,
    TABLES,
    Protocol,
    Recipe,
    Search,
    Table,
    Value,
)
from sgdf.support.errors import unknown

__all__ = [
    "LEARNING_RATES",
    "OPTIMIZERS",
    "PRESETS",
    "SEARCHES",
    "TABLES",
    "TITLES",
    "Cell",
    "Preset",
    "Protocol",
    "Recipe",
    "Search",
    "Table",
    "Value",
    "preset",
    "protocol",
    "published",
    "recipe",
    "settings",
]

OPTIMIZERS = tuple(sorted(RECIPES["cifar"].keys() | BORROWED.keys()))
LEARNING_RATES = {optimizer: search.lr for optimizer, search in SEARCHES.items()}

CIFAR = ("cifar10", "cifar100")


def family(task: str) -> str:
    """The name under which the paper has a task: its two CIFARs share all settings."""
    if task.startswith("finetune-"):
        return "vit"
    return "cifar" if task in CIFAR else task


def published(task: str, model: str, optimizer: str) -> Value | None:
    """The paper's number, of the first table that has it: a mean over seeds before one run."""
    for table in TABLES.values():
        if value := table.rows.get(optimizer, {}).get(f"{task}/{model}"):
            return value
    return None


def settings(task: str, optimizer: str) -> dict[str, Any]:
    """Keyword arguments of the optimizer for that task; `recipe` says where they come from."""
    return dict(recipe(task, optimizer).settings)


def recipe(task: str, optimizer: str) -> Recipe:
    """The published settings, or the nearest to them, with their source.

    An optimizer that the paper did not run on a task takes the settings of its closest relative
    there, or else its own of CIFAR with the weight decay of the task. So do tasks that the paper
    does not have.
    """
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    own = RECIPES.get(family(task), {})
    if optimizer in own:
        return own[optimizer]
    lender = BORROWED.get(optimizer)
    if lender in own:
        return borrowed(own[lender], lender)
    return of_cifar(optimizer, own)


def borrowed(row: Recipe, lender: str) -> Recipe:
    """Another optimizer's settings; what torch's SGD calls momentum is beta in the lab's."""
    values = {("beta" if key == "momentum" else key): value for key, value in row.settings.items()}
    return replace(row, settings=values, source=f"ours: {lender}'s of {row.source}")


def of_cifar(optimizer: str, own: Mapping[str, Recipe]) -> Recipe:
    """CIFAR's settings for another task, whose weight decay is the same in all `own` recipes."""
    row = recipe("cifar10", optimizer)
    values = dict(row.settings)
    if own and "weight_decay" in values:
        values["weight_decay"] = own["sgdf"].settings.get("weight_decay", 0.0)
    source = f"ours: CIFAR's, {row.source.removeprefix('ours: ')}"
    return replace(row, settings=values, source=source)


def protocol(task: str, model: str = "") -> Protocol:
    """How the paper trained on one of its tasks; one network may differ from the others."""
    name = family(task)
    if name not in PROTOCOLS:
        known = [name for name in PROTOCOLS.keys() - {"cifar"} if "/" not in name]
        raise unknown("task of the paper", task, [*CIFAR, *known])
    return PROTOCOLS.get(f"{name}/{model}", PROTOCOLS[name])


# --- what `sgdf reproduce` runs -----------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One entry of a table or curve of a figure; `overrides` replace the recipe's settings."""

    task: str
    model: str
    optimizer: str
    label: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    published: Value | None = None


@dataclass(frozen=True)
class Preset:
    """A table or figure to run again: every cell with every seed."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...] = PROTOCOLS["cifar"].seeds
    epochs: int = PROTOCOLS["cifar"].epochs
    track_norms: bool = False
    note: str = ""


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "vgg11": "VGG11",
    "resnet34": "ResNet34",
    "densenet121": "DenseNet121",
    "densenet161": "DenseNet161",
    "resnet18": "ResNet18",
    "resnet50": "ResNet50",
    "vgg11-bn": "VGG11 with batch norm",
    "vgg13-bn": "VGG13 with batch norm",
    "imagenet": "ImageNet",
    "pets": "Oxford-IIIT Pets",
    "flowers102": "Oxford Flowers-102",
    "food101": "Food-101",
    "vit-b32": "ViT-B/32",
    "vit-l32": "ViT-L/32",
    "voc": "PASCAL VOC",
    "fasterrcnn": "Faster-RCNN",
    "wgan-gp": "CIFAR-10 (WGAN-GP)",
    "dcgan": "DCGAN",
}
MODELS = ("vgg11", "resnet34", "densenet121")


def table_column(task: str, model: str) -> Preset:
    """All optimizers of tab:cifar_values on one network and data set."""
    cells = tuple(
        Cell(task, model, optimizer, optimizer, published=row[f"{task}/{model}"])
        for optimizer, row in TABLES["cifar"].rows.items()
    )
    return Preset(f"{task}-{model}", f"{TITLES[model]} on {TITLES[task]}", cells)


def wiener_adam() -> Preset:
    rows = TABLES["wiener-adam"].rows
    cells = tuple(
        Cell(
            "cifar100", model, optimizer, optimizer, published=rows[optimizer][f"cifar100/{model}"]
        )
        for model in MODELS
        for optimizer in ("adam", "filter-adam")
    )
    return Preset("wiener-adam", TABLES["wiener-adam"].title, cells)


def correction() -> Preset:
    """fig:correction; only the corrected curves have numbers, those of tab:cifar_values."""
    cells = tuple(
        Cell(
            task,
            model,
            "sgdf",
            "corrected" if corrected else "uncorrected",
            {"correction": corrected},
            published(task, model, "sgdf") if corrected else None,
        )
        for task in CIFAR
        for model in MODELS
        for corrected in (True, False)
    )
    return Preset("correction", "SGDF with and without the correction factor", cells)


def momentum_factors() -> Preset:
    """fig:norm-comparison and fig:cm-comparison: the same learning rate for all methods."""
    methods: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("sgd-cm", "sgd (factor 0)", {"lr": 0.1, "beta": 0.0}),
        ("sgd-cm", "sgd-cm, factor 0.5", {"lr": 0.1, "beta": 0.5}),
        ("sgd-cm", "sgd-cm, factor 0.9", {"lr": 0.1, "beta": 0.9}),
        ("sgd-ema", "sgd-ema, factor 0.9", {"lr": 0.1, "beta": 0.9}),
        ("sgdf", "sgdf", {"lr": 0.1}),
    )
    # The figures have no numbers, but one curve has the settings of SGD in tab:cifar_values.
    numbers = {("vgg11", "sgd-cm, factor 0.9"): published("cifar100", "vgg11", "sgd")}
    cells = tuple(
        Cell("cifar100", model, optimizer, label, overrides, numbers.get((model, label)))
        for model in ("vgg11", "resnet18")
        for optimizer, label, overrides in methods
    )
    note = (
        "The paper names the networks and the learning rate but no data set; CIFAR-100 is that of "
        "its other figures of these methods."
    )
    return Preset(
        "momentum-factors",
        "Momentum factors, and norms during training",
        cells,
        track_norms=True,
        note=note,
    )


def detection() -> Preset:
    """All optimizers of tab:object_detection."""
    cells = tuple(
        Cell("voc", "fasterrcnn", optimizer, optimizer, published=row["voc/fasterrcnn"])
        for optimizer, row in TABLES["voc"].rows.items()
    )
    note = (
        "The paper does not say by which rule it computed its mAP: at IoU 0.5 is what stands "
        "here. AdaBelief's and EAdam's numbers are other papers', of other settings; here these "
        "two have Adam's."
    )
    protocol = PROTOCOLS["voc"]
    title = TABLES["voc"].title
    return Preset("voc-fasterrcnn", title, cells, protocol.seeds, protocol.epochs, note=note)


def generation() -> Preset:
    """All optimizers of tab:fid-wgan-gp."""
    table, how = TABLES["wgan-gp"], PROTOCOLS["wgan-gp"]
    cells = tuple(
        Cell("wgan-gp", "dcgan", optimizer, optimizer, published=row["wgan-gp/dcgan"])
        for optimizer, row in table.rows.items()
    )
    note = (
        "The paper gives neither data set nor networks, nor settings for SGD and MSVAG, whose "
        "numbers are the AdaBelief paper's: here these are as in that paper's code."
    )
    title = "WGAN-GP on CIFAR-10"
    return Preset("wgan-gp", title, cells, how.seeds, how.epochs, note=note)


def imagenet(model: str) -> Preset:
    """A network on ImageNet, with all optimizers of its table."""
    name = "imagenet-resnet18" if model == "resnet18" else "imagenet"
    cells = tuple(
        Cell("imagenet", model, optimizer, optimizer, published=row[f"imagenet/{model}"])
        for optimizer, row in TABLES[name].rows.items()
    )
    how = protocol("imagenet", model)
    title, note = f"{TITLES[model]} on ImageNet", TABLES[name].notes[0]
    return Preset(f"imagenet-{model}", title, cells, how.seeds, how.epochs, note=note)


def finetuning(model: str, *datasets: str) -> Preset:
    """A part of tab:vitresult: one of its cells with both optimizers, or one of its networks."""
    cells = tuple(
        Cell(
            f"finetune-{data}", model, optimizer, optimizer,
            published=row[f"finetune-{data}/{model}"],
        )
        for data in datasets
        for optimizer, row in TABLES["vit"].rows.items()
    )  # fmt: skip
    how = PROTOCOLS["vit"]
    one = len(datasets) == 1
    where = TITLES[datasets[0]] if one else "six data sets"
    note = (
        "The paper began with weights of ImageNet-21k; torchvision's, which are the default, are "
        "of ImageNet-1k."
    )
    return Preset(
        f"{model}-{datasets[0]}" if one else model,
        f"Fine-tuning {TITLES[model]} on {where}",
        cells,
        how.seeds,
        how.epochs,
        note=note,
    )


FINETUNED = ("cifar10", "cifar100", "pets", "flowers102", "food101", "imagenet")
IMAGENET = tuple(
    column.partition("/")[2]
    for name in ("imagenet-resnet18", "imagenet")
    for column in TABLES[name].rows["sgdf"]
    if "top-5" not in column
)

PRESETS: dict[str, Preset] = {
    made.name: made
    for made in (
        *(table_column(task, model) for task in CIFAR for model in MODELS),
        wiener_adam(),
        correction(),
        momentum_factors(),
        detection(),
        generation(),
        *(imagenet(model) for model in IMAGENET),
        *(finetuning(model, data) for model in ("vit-b32", "vit-l32") for data in FINETUNED),
        *(finetuning(model, *FINETUNED) for model in ("vit-b32", "vit-l32")),
    )
}

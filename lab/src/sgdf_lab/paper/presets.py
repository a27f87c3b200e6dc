"""The tables and figures of the paper that `sgdf reproduce` runs again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sgdf_lab.paper.published import CIFAR, TABLES, TITLES, PublishedValue, protocol, published
from sgdf_lab.support.errors import unknown


@dataclass(frozen=True)
class PresetCell:
    """One entry of a table or curve of a figure; `overrides` replace the recipe's settings."""

    task: str
    model: str
    optimizer: str
    label: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    published: PublishedValue | None = None


@dataclass(frozen=True)
class Preset:
    """A table or figure to run again: every cell with every seed."""

    name: str
    title: str
    cells: tuple[PresetCell, ...]
    seeds: tuple[int, ...]
    epochs: int
    track_norms: bool = False
    note: str = ""


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def by_protocol(name: str, title: str, cells: tuple[PresetCell, ...], **more: Any) -> Preset:
    """A preset with the seeds and epochs of its task's protocol."""
    how = protocol(cells[0].task, cells[0].model)
    return Preset(name, title, cells, how.seeds, how.epochs, **more)


def column(table: str, task: str, model: str) -> tuple[PresetCell, ...]:
    """A column of a table: one task and model, all optimizers."""
    return tuple(
        PresetCell(task, model, optimizer, optimizer, published=row[f"{task}/{model}"])
        for optimizer, row in TABLES[table].rows.items()
    )


CIFAR_MODELS = ("vgg11", "resnet34", "densenet121")


def cifar(task: str, model: str) -> Preset:
    title = f"{TITLES[model]} on {TITLES[task]}"
    return by_protocol(f"{task}-{model}", title, column("cifar", task, model))


def wiener_adam() -> Preset:
    """Adam, then Adam with the filter, on each network."""
    columns = (column("wiener-adam", "cifar100", model)[::-1] for model in CIFAR_MODELS)
    cells = tuple(cell for cells in columns for cell in cells)
    return by_protocol("wiener-adam", TABLES["wiener-adam"].title, cells)


def correction() -> Preset:
    """fig:correction; only the corrected curves have numbers, those of tab:cifar_values."""
    cells = tuple(
        PresetCell(
            task,
            model,
            "sgdf",
            "corrected" if corrected else "uncorrected",
            {"correction": corrected},
            published(task, model, "sgdf") if corrected else None,
        )
        for task in CIFAR
        for model in CIFAR_MODELS
        for corrected in (True, False)
    )
    return by_protocol("correction", "SGDF with and without the correction factor", cells)


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
        PresetCell("cifar100", model, optimizer, label, overrides, numbers.get((model, label)))
        for model in ("vgg11", "resnet18")
        for optimizer, label, overrides in methods
    )
    note = (
        "The paper names the networks and the learning rate but no dataset; its other figures of "
        "these methods are of CIFAR-100."
    )
    title = "Momentum factors, and norms during training"
    return by_protocol("momentum-factors", title, cells, track_norms=True, note=note)


def detection() -> Preset:
    note = (
        "The paper does not say by which rule it computed its mAP; here it is the one at IoU 0.5. "
        "AdaBelief's and EAdam's numbers are from other papers, with other settings; here these "
        "two have Adam's settings."
    )
    cells = column("voc", "voc", "fasterrcnn")
    return by_protocol("voc-fasterrcnn", TABLES["voc"].title, cells, note=note)


def generation() -> Preset:
    note = (
        "The paper gives neither the dataset nor the networks, nor settings for SGD and MSVAG, "
        "whose numbers are the AdaBelief paper's: here these two have the settings of that paper's "
        "code."
    )
    cells = column("wgan-gp", "wgan-gp", "dcgan")
    return by_protocol("wgan-gp", "WGAN-GP on CIFAR-10", cells, note=note)


def imagenet(model: str) -> Preset:
    table = "imagenet-resnet18" if model == "resnet18" else "imagenet"
    title, note = f"{TITLES[model]} on ImageNet", TABLES[table].notes[0]
    return by_protocol(f"imagenet-{model}", title, column(table, "imagenet", model), note=note)


def finetuning(model: str, *datasets: str) -> Preset:
    """One network of tab:vitresult, on one dataset or on all."""
    columns = (column("vit", f"finetune-{dataset}", model) for dataset in datasets)
    cells = tuple(cell for cells in columns for cell in cells)
    note = (
        "The paper starts from weights of ImageNet-21k; torchvision's, which are the default, are "
        "of ImageNet-1k."
    )
    if len(datasets) == 1:
        name, where = f"{model}-{datasets[0]}", TITLES[datasets[0]]
    else:
        name, where = model, "six data sets"
    return by_protocol(name, f"Fine-tuning {TITLES[model]} on {where}", cells, note=note)


FINETUNED = ("cifar10", "cifar100", "pets", "flowers102", "food101", "imagenet")
VIT_MODELS = ("vit-b32", "vit-l32")
IMAGENET_MODELS = tuple(
    name.partition("/")[2]
    for table in ("imagenet-resnet18", "imagenet")
    for name in TABLES[table].rows["sgdf"]
    if "top-5" not in name
)

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        *(cifar(task, model) for task in CIFAR for model in CIFAR_MODELS),
        wiener_adam(),
        correction(),
        momentum_factors(),
        detection(),
        generation(),
        *(imagenet(model) for model in IMAGENET_MODELS),
        *(finetuning(model, dataset) for model in VIT_MODELS for dataset in FINETUNED),
        *(finetuning(model, *FINETUNED) for model in VIT_MODELS),
    )
}

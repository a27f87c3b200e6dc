"""The results that the paper published, as data.

A `label` such as ``tab:cifar_values`` is the paper's own name of a table or figure. Optimizers have
the lab's names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedValue:
    """A published number; `note` says when another paper is its source."""

    mean: float
    std: float | None = None
    note: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """Results by optimizer and column; `notes` are what a reader has to know about them."""

    name: str
    label: str
    title: str
    metric: str
    rows: Mapping[str, Mapping[str, PublishedValue]]
    lower_is_better: bool = False
    notes: tuple[str, ...] = ()


ENTRY = re.compile(r"(?P<mean>[\d.]+)(?:±(?P<std>[\d.]+))?(?P<mark>[*†‡]?)")


def _rows(
    columns: str, rows: Mapping[str, str], marks: Mapping[str, str] | None = None
) -> dict[str, dict[str, PublishedValue]]:
    """Parse entries as the paper prints them: ``91.76±0.11``, ``70.23†`` with a mark, ``-``."""
    table: dict[str, dict[str, PublishedValue]] = {}
    for optimizer, text in rows.items():
        table[optimizer] = {}
        for column, entry in zip(columns.split(), text.split(), strict=True):
            if match := ENTRY.fullmatch(entry):
                std = float(match["std"]) if match["std"] else None
                note = (marks or {})[match["mark"]] if match["mark"] else ""
                table[optimizer][column] = PublishedValue(float(match["mean"]), std, note)
            elif entry != "-":
                raise ValueError(f"{optimizer}, {column}: {entry!r}")
    return table


# A column is named task/model where possible: `published` looks it up by that name.
_TABLES = (
    PublishedTable(
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
    PublishedTable(
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
    PublishedTable(
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
    PublishedTable(
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
    PublishedTable(
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
    PublishedTable(
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
    PublishedTable(
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
    PublishedTable(
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
            "SGD is without momentum here: SGD-CM has its own row.",
            "AdamW's are by far the lowest, and its accuracy about 4 points below the others'.",
        ),
    ),
)
TABLES = {table.name: table for table in _TABLES}

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


def published(task: str, model: str, optimizer: str, part: str = "") -> PublishedValue | None:
    """The paper's number, from the first table that has it: means over seeds come first.

    `part` is the last word of a column of another metric: "top-5".
    """
    column = "/".join(filter(None, (task, model, part)))
    for table in TABLES.values():
        if value := table.rows.get(optimizer, {}).get(column):
            return value
    return None

"""Photographs sorted into classes by torchvision's networks: ImageNet, and fine-tuning of ViT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgdf_lab.data import class_folders, fingerprints
from sgdf_lab.tasks.registry import ACCURACY, Metric, Task, paper_task

TOP5 = Metric("test_top5_accuracy", "top-5 test accuracy", column="top-5")
TRAINER = f"{__name__}.classifier"

# torchvision's; the tiny ones, of the same classes, are for a CPU.
IMAGENET_MODELS = (
    *("resnet18", "resnet34", "resnet50", "vgg11-bn", "vgg13-bn", "densenet121", "densenet161"),
    "resnet-tiny",
)
VIT_MODELS = ("vit-b32", "vit-l32", "vit-tiny")


def finetuning(data: str, *metrics: Metric, **options: Any) -> Task:
    """ViT with a new head, by the paper's protocol; `options` depend on the dataset."""
    return paper_task(
        f"finetune-{data}",
        "vit-b32",
        models=VIT_MODELS,
        data=data,
        trainer=TRAINER,
        accumulate=8,  # the paper does not say: a batch of 512 does not fit on every GPU
        metrics=metrics or (ACCURACY,),
        options={"weights": "pretrained", "size": 384, **options},
    )


def identify(options: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    """The user's own images: two folders never have runs of the same name."""
    return {"fingerprint": fingerprints.fingerprint(class_folders.read(folder).named_files())}


TASKS = (
    paper_task(
        "imagenet",
        "resnet18",
        models=IMAGENET_MODELS,
        trainer=TRAINER,
        metrics=(ACCURACY, TOP5),
        options={"size": 224, "classes": 0},
    ),
    Task(
        "images",
        "resnet18",
        epochs=30,
        batch=64,
        schedule="cosine",
        trainer=f"{__name__}.own",
        options={"size": 224, "augment": "crop", "fingerprint": ""},
        any_model=True,
        of_paper=False,
        identify=identify,
    ),
    finetuning("cifar10"),
    finetuning("cifar100"),
    finetuning("pets", classes=0),
    finetuning("flowers102", classes=0),
    finetuning("food101", classes=0),
    finetuning("imagenet", ACCURACY, TOP5, classes=0),
)

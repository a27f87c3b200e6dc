"""What can be learnt in the lab: a data set, and how the published protocol treats it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sgdf.support.errors import unknown


@dataclass(frozen=True)
class Metric:
    """A number of every epoch that a task is judged by."""

    key: str  # in metrics.jsonl
    words: str
    unit: str = "%"
    lower_is_better: bool = False

    @property
    def title(self) -> str:
        """
        >>> Metric("test_accuracy", "test accuracy").title, Metric("ap", "mAP at IoU 0.5").title
        ('Test accuracy', 'mAP at IoU 0.5')
        """
        first, *_ = self.words.split()
        return self.words[0].upper() + self.words[1:] if first.islower() else self.words

    def best(self, values: Iterable[float]) -> float:
        return float((min if self.lower_is_better else max)(values))

    def reaches(self, value: float, target: float) -> bool:
        return value <= target if self.lower_is_better else value >= target


ACCURACY = Metric("test_accuracy", "test accuracy")
TOP5 = Metric("test_top5_accuracy", "top-5 test accuracy")
FID = Metric("fid", "FID", unit="", lower_is_better=True)


@dataclass(frozen=True)
class Task:
    """A data set with the protocol that `sgdf train` follows unless told otherwise."""

    name: str
    model: str
    epochs: int
    batch: int
    epochs_of: Mapping[str, int] = field(default_factory=dict)  # of networks that differ
    data: str = ""  # the data set, if it has another name
    kind: str = "classify"  # the module of the lab that has its trainer
    models: tuple[str, ...] = ()  # the networks that it takes, if not all of the lab's own
    augmented: bool = False  # zero-pad by 4, crop, flip
    schedule: str = "step"
    clip: float | None = None
    accumulate: int = 1
    metrics: tuple[Metric, ...] = (ACCURACY,)  # it is judged by the first
    options: Mapping[str, Any] = field(default_factory=dict)  # that it alone has, with defaults

    @property
    def metric(self) -> Metric:
        return self.metrics[0]

    @property
    def dataset(self) -> str:
        return self.data or self.name


# torchvision's; the tiny ones, of the same classes, are for a CPU.
IMAGENET_MODELS = (
    *("resnet18", "resnet34", "resnet50", "vgg11-bn", "vgg13-bn", "densenet121", "densenet161"),
    "resnet-tiny",
)
VIT_MODELS = ("vit-b32", "vit-l32", "vit-tiny")


def finetuning(data: str, *metrics: Metric, **options: Any) -> Task:
    """ViT with a new head, by the paper's protocol; `options` are those of the data."""
    return Task(
        f"finetune-{data}",
        "vit-b32",
        epochs=10,
        batch=512,
        data=data,
        kind="vision",
        models=VIT_MODELS,
        schedule="cosine",
        clip=1.0,
        accumulate=8,
        metrics=metrics or (ACCURACY,),
        options={"weights": "pretrained", "size": 384, **options},
    )


TASKS = {
    task.name: task
    for task in (
        Task("digits", "mlp", epochs=20, batch=32),
        Task("fashion-mnist", "cnn", epochs=20, batch=128),
        Task("cifar10", "vgg11", epochs=200, batch=128, augmented=True),
        Task("cifar100", "vgg11", epochs=200, batch=128, augmented=True),
        Task(
            "voc",
            "fasterrcnn",
            epochs=4,
            batch=2,
            kind="detect",
            models=("fasterrcnn", "fasterrcnn-tiny"),
            metrics=(
                Metric("test_ap50", "mAP at IoU 0.5"),
                Metric("test_ap", "mAP at IoU 0.5 to 0.95"),
                Metric("test_voc_ap", "mAP by the rule of VOC 2007"),
            ),
            # weights: or random, or a file; lists of images: or any
            options={"weights": "pretrained", "lists": "official"},
        ),
        Task(
            "wgan-gp",
            "dcgan",
            epochs=100,
            batch=64,
            data="cifar10",
            kind="gan",
            models=("dcgan", "dcgan-tiny"),
            schedule="constant",
            metrics=(FID,),
            options={
                "features": "inception",  # the network whose features FID compares
                "fid_samples": 64000,
                "fid_every": 0,  # epochs; always after the last
                "critic_norm": "batch",  # or layer
            },
        ),
        Task(
            "imagenet",
            "resnet18",
            epochs=90,
            epochs_of={"resnet18": 100},
            batch=256,
            kind="vision",
            models=IMAGENET_MODELS,
            schedule="cosine",
            metrics=(ACCURACY, TOP5),
            options={"size": 224, "classes": 0},
        ),
        finetuning("cifar10"),
        finetuning("cifar100"),
        finetuning("pets", classes=0),
        finetuning("flowers102", classes=0),
        finetuning("food101", classes=0),
        finetuning("imagenet", ACCURACY, TOP5, classes=0),
    )
}


def find(name: str) -> Task:
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]

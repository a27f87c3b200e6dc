"""The tasks: what is trained, by which protocol, and the metrics that runs are compared by.

To add a task, add a row to `TASKS`. Unless it is classification, add a module with its trainer,
which the row names: functions `check` and `build_trainer`, as `sgdf_lab.tasks.classify` has. An
installed package can add one by an entry point of the group ``sgdf.tasks`` that names a `Task`.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from sgdf_lab import paper, plugins
from sgdf_lab.registry.models import AIRBENCH, CLASSIFIERS, LANGUAGE_MODELS
from sgdf_lab.support.errors import UserError, unknown


@dataclass(frozen=True)
class Metric:
    """A number that is measured after an epoch."""

    key: str  # in metrics.jsonl
    words: str
    unit: str = "%"
    lower_is_better: bool = False
    column: str = ""  # how the names of its columns end in the paper's tables, if not by the model
    digits: int = 2  # after the point, where it is shown
    grain: float = 0.5  # a target that all runs reach is rounded to a multiple of it
    target: float | None = None  # results say when a run reached it

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

    def shown(self, value: float) -> str:
        return f"{value:.{self.digits}f}"

    def reaches(self, value: float, target: float) -> bool:
        return value <= target if self.lower_is_better else value >= target


ACCURACY = Metric("test_accuracy", "test accuracy")


@dataclass(frozen=True)
class Task:
    """A dataset and the protocol that `sgdf train` follows unless a setting overrides it."""

    name: str
    model: str
    epochs: int
    batch: int
    epochs_of: Mapping[str, int] = field(default_factory=dict)  # for models that differ
    data: str = ""  # the dataset, if its name is another
    trainer: str = "sgdf_lab.tasks.classify"  # module with `check` and `build_trainer`
    models: tuple[str, ...] = ()  # that it takes; none given: the lab's own classifiers
    augmented: bool = False  # zero-pad by 4, crop, flip
    schedule: str = "step"
    clip: float | None = None
    accumulate: int = 1
    metrics: tuple[Metric, ...] = (ACCURACY,)  # runs are compared by the first
    options: Mapping[str, Any] = field(default_factory=dict)  # of this task only, with defaults
    any_model: bool = False  # its trainer finds models by names that are not listed here
    of_paper: bool = True  # optimizers have the paper's settings; else the defaults of their class
    param_groups: bool = False  # weight decay on the groups of `sgdf.param_groups` by default
    settings_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by optimizer
    # Place of a function: the run's options and the data folder -> options that identify the data.
    identifier: str = ""
    places: tuple[str, ...] = ()  # options that say where such data lies

    @property
    def metric(self) -> Metric:
        return self.metrics[0]

    @property
    def validation_key(self) -> str:
        """The measurement that settings are chosen by: on what is held out from training.

        >>> [find(name).validation_key for name in ("cifar10", "text")]
        ['validation_accuracy', 'val_loss']
        """
        key = self.metric.key  # a text always holds out a part of itself
        return key if self.kind == "language" else f"validation_{key.removeprefix('test_')}"

    @property
    def identify(self) -> Callable[[Mapping[str, Any], Path | None], Mapping[str, Any]] | None:
        """How a run knows a user's own data, if the task takes such."""
        return plugins.load_own(self.identifier) if self.identifier else None

    @property
    def module(self) -> ModuleType:
        """The module of its trainer, with `check` and `build_trainer`; imported when needed."""
        try:
            return importlib.import_module(self.trainer)
        except ModuleNotFoundError as error:
            raise UserError(
                f'{self.name} needs {error.name}: pip install "sgdf-lab[vision]"'
            ) from None

    @property
    def dataset(self) -> str:
        return self.data or self.name

    def takes_model(self, name: str) -> bool:
        """Whether a network of that name may be trained on it."""
        own = ":" in name and self.kind in ("classify", "photos", "language")
        return own or self.any_model or name in (self.models or CLASSIFIERS)

    @property
    def counts_steps(self) -> bool:
        """Whether its runs are as long as a number of steps, not of epochs.

        Where settings and files say epoch, they mean the `eval_every` steps before an evaluation.
        """
        return "eval_every" in self.options

    @property
    def kind(self) -> str:
        """The part of the lab that trains it.

        >>> Task("digits", "mlp", epochs=20, batch=32).kind
        'classify'
        """
        return self.trainer.split(".")[2] if self.trainer.startswith("sgdf_lab.") else self.trainer


def paper_task(name: str, model: str, *, models: tuple[str, ...] = (), **rest: Any) -> Task:
    """A task of the paper: epochs, batch, schedule and clipping are those of `paper.protocol`."""
    protocol = paper.protocol(name)
    epochs = {model: paper.protocol(name, model).epochs for model in models}
    return Task(
        name,
        model,
        epochs=protocol.epochs,
        batch=protocol.batch,
        epochs_of={model: n for model, n in epochs.items() if n != protocol.epochs},
        schedule=protocol.schedule,
        clip=protocol.clip,
        models=models,
        **rest,
    )


# --- what the rows share --------------------------------------------------------------------------

DECAY = 0.0153 / 11.5
# Ours: the same step on a constant gradient, for averages with weights that sum to one.
AVERAGED = {"lr": 10.0, "weight_decay": DECAY}
FAST_SETTINGS: dict[str, dict[str, Any]] = {
    "sgd-nesterov": {"lr": 1.5, "momentum": 0.85, "weight_decay": DECAY},
    "sgd": {"lr": 1.5, "momentum": 0.85, "weight_decay": DECAY},
    "sgd-cm": {"lr": 1.5, "beta": 0.85, "weight_decay": DECAY},
    "sgd-ema": {**AVERAGED, "beta": 0.85},
    "sgdf": {**AVERAGED, "betas": [0.85, 0.999]},
}

LOSS = Metric(
    "val_loss", "validation loss", unit="nats/token", lower_is_better=True, digits=3, grain=0.05
)
BITS = Metric("bits_per_byte", "bits per byte", unit="", lower_is_better=True, digits=3)


def text_task(name: str, identify: str, **options: str) -> Task:
    return Task(
        name,
        "gpt-11m",
        epochs=20,  # evaluations: 2000 steps
        batch=64,  # windows
        trainer="sgdf_lab.tasks.language",
        models=tuple(LANGUAGE_MODELS),
        of_paper=False,
        param_groups=True,
        schedule="cosine",
        clip=1.0,
        metrics=(LOSS, BITS),
        options={
            "eval_every": 100,  # steps between evaluations
            "eval_tokens": 1 << 18,  # of the validation text
            "test_tokens": 0,  # of the second half of that text, for one test at the end
            "context": 0,  # tokens in a window; 0: the model's
            "tokenizer": "bytes",  # or a tokenizer.json
            "fingerprint": "",  # of the text and the tokenizer, if they are the user's
            **options,
        },
        places=("corpus", "tokenizer"),
        identifier=f"sgdf_lab.tasks.language:{identify}",
    )


TOP5 = Metric("test_top5_accuracy", "top-5 test accuracy", column="top-5")
PHOTOS = "sgdf_lab.paper.photos.trainer"

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
        trainer=PHOTOS,
        accumulate=8,  # the paper does not say: a batch of 512 does not fit on every GPU
        metrics=metrics or (ACCURACY,),
        options={"weights": "pretrained", "size": 384, **options},
    )


# --- the table ------------------------------------------------------------------------------------

_ROWS = (
    Task("digits", "mlp", epochs=20, batch=32),
    Task("fashion-mnist", "cnn", epochs=20, batch=128),
    paper_task("cifar10", "vgg11", augmented=True),
    paper_task("cifar100", "vgg11", augmented=True),
    paper_task(
        "voc",
        "fasterrcnn",
        trainer="sgdf_lab.paper.detection.trainer",
        models=("fasterrcnn", "fasterrcnn-tiny"),
        metrics=(
            Metric("test_ap50", "mAP at IoU 0.5"),
            Metric("test_ap", "mAP at IoU 0.5 to 0.95"),
            Metric("test_voc_ap", "mAP by the rule of VOC 2007"),
        ),
        options={
            "weights": "pretrained",  # or random, or a file
            "lists": "official",  # of images; or any
            "names": None,  # a file with class names, for other images in the layout of VOC
            "fingerprint": "",  # of these
        },
        identifier="sgdf_lab.paper.detection.voc:identify",
    ),
    Task(
        "cifar10-fast",
        "airbench",
        epochs=17,  # evaluations: 476 steps, 9.9 passes of 48 full batches
        batch=1024,
        data="cifar10",
        trainer="sgdf_lab.tasks.fast",
        models=AIRBENCH,
        schedule="triangle",
        metrics=(Metric("test_accuracy", "test accuracy", target=94.0),),
        of_paper=False,
        settings_of=FAST_SETTINGS,
        options={
            "eval_every": 28,  # steps between evaluations
            "smoothing": 0.2,  # of labels
            "shift": 2,  # pixels by which images move; they are mirrored in every other pass
            "bias_scale": 0,  # rate of norms' biases over that of the rest; 0: 64 for SGD's kin
            "bias_passes": 3,  # over the images, in which the first layer's bias is trained
            "lookahead": 5,  # steps between moves of the slow weights; 0: there are none
            "views": "mirror+shift",  # of an image at evaluation, whose logits are averaged
        },
    ),
    paper_task(
        "wgan-gp",
        "dcgan",
        data="cifar10",
        trainer="sgdf_lab.paper.gan.trainer",
        models=("dcgan", "dcgan-tiny"),
        metrics=(Metric("fid", "FID", unit="", lower_is_better=True),),
        options={
            "features": "inception",  # the network whose features FID compares
            "fid_samples": 64000,
            "fid_every": 0,  # epochs; after the last it is always measured
            "critic_norm": "batch",  # or layer
        },
    ),
    text_task("text", "identify", corpus=""),
    text_task("enwik8", "identify_tokenizer"),
    text_task("text8", "identify_tokenizer"),
    paper_task(
        "imagenet",
        "resnet18",
        models=IMAGENET_MODELS,
        trainer=PHOTOS,
        metrics=(ACCURACY, TOP5),
        options={"size": 224, "classes": 0},
    ),
    Task(
        "images",
        "resnet18",
        epochs=30,
        batch=64,
        schedule="cosine",
        trainer="sgdf_lab.tasks.photos",
        options={"size": 224, "augment": "crop", "fingerprint": ""},
        any_model=True,
        of_paper=False,
        identifier="sgdf_lab.data.class_folders:identify",
    ),
    finetuning("cifar10"),
    finetuning("cifar100"),
    finetuning("pets", classes=0),
    finetuning("flowers102", classes=0),
    finetuning("food101", classes=0),
    finetuning("imagenet", ACCURACY, TOP5, classes=0),
)
TASKS = {task.name: task for task in _ROWS}
GROUP = "sgdf.tasks"  # of entry points


def find(name: str) -> Task:
    """The task of that name; `UserError` if there is none."""
    if name in TASKS:
        return TASKS[name]
    announced = plugins.announced(GROUP)
    if name not in announced:
        raise unknown("task", name, [*TASKS, *announced])
    task = plugins.load("task", announced[name])
    if not isinstance(task, Task):
        kind = type(task).__name__
        raise UserError(f"the task {name!r} of {announced[name].value} is a {kind}, not a Task")
    return task

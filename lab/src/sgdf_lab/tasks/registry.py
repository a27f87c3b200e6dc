"""A task: what is trained, by which protocol, and the metrics that its runs are compared by."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgdf_lab import paper


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
    options: Mapping[str, Any] = field(default_factory=dict)  # of this task alone, with defaults
    any_model: bool = False  # its trainer finds models by names that are not listed here
    of_paper: bool = True  # optimizers have the paper's settings; else the defaults of their class
    settings_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by optimizer
    # Options by which a run knows a user's own data, from the run's options and the data folder.
    identify: Callable[[Mapping[str, Any], Path | None], Mapping[str, Any]] | None = None
    places: tuple[str, ...] = ()  # options that say where such data lies
    tokens_of: Mapping[str, int] = field(default_factory=dict)  # in an example, by model

    @property
    def metric(self) -> Metric:
        return self.metrics[0]

    @property
    def dataset(self) -> str:
        return self.data or self.name

    def takes_model(self, name: str, others: Iterable[str]) -> bool:
        """Whether a network of that name, of the `others` by default, may be trained on it."""
        own = ":" in name and self.kind in ("classify", "photos")
        return own or self.any_model or name in (self.models or tuple(others))

    @property
    def counts_steps(self) -> bool:
        """Whether its runs are as long as a number of steps, not of epochs.

        Where settings and files say epoch, they mean the `eval_every` steps before an evaluation.
        """
        return "eval_every" in self.options

    @property
    def kind(self) -> str:
        """The part of `sgdf_lab.tasks` that trains it.

        >>> Task("digits", "mlp", epochs=20, batch=32).kind
        'classify'
        """
        return self.trainer.removeprefix("sgdf_lab.tasks.").partition(".")[0]


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

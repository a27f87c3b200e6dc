"""The settings of a run: everything that decides its numbers, and nothing else."""

import ast
import dataclasses
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgdf.lab import models, optimizers, paper, tasks
from sgdf.lab.train import schedules
from sgdf.support.errors import UserError, unknown
from sgdf.lab.paper import PublishedValue

VERSION = 1
PRECISIONS = ("tf32", "bf16", "fp32")


@dataclass(frozen=True)
class Config:
    """One run. `batch` is what one step of the optimizer sees, in `accumulate` pieces."""

    task: str
    model: str
    optimizer: str
    seed: int = 0
    epochs: int = 200
    batch: int = 128
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer
    schedule: str = "step"
    milestones: tuple[int, ...] = ()
    drop: float = 0.1  # the factor at a milestone
    clip: float | None = None
    accumulate: int = 1
    precision: str = "tf32"  # where the device has it; a CPU computes in float32
    data: str = "real"
    validation: int = 0  # training images held out, to choose by
    norms: bool = False  # record the norms of gradients and of steps
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task alone
    version: int = VERSION

    def __post_init__(self) -> None:
        task = tasks.find(self.task)
        fitting = task.models or models.NAMES
        if self.model not in fitting:
            raise unknown("model", self.model, fitting)
        for name in self.options:
            if name not in task.options:
                raise unknown(f"option of {self.task}:", name, task.options)
        check_number("drop", self.drop)
        schedules.check(self.schedule, self.milestones, self.drop)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.data not in ("real", "synthetic"):
            raise unknown("kind of data", self.data, ("real", "synthetic"))
        for name, least in (("epochs", 1), ("batch", 1), ("accumulate", 1), ("validation", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{name} is a whole number from {least} on, not {value!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise UserError(f"seed is a whole number from 0 on, not {self.seed!r}")
        if self.accumulate > self.batch:
            raise UserError(f"a batch of {self.batch} cannot be had in {self.accumulate} pieces")
        if self.clip is not None and not (is_number(self.clip) and self.clip > 0):
            raise UserError(f"clip is a positive norm, not {self.clip!r}")
        if not isinstance(self.norms, bool):
            raise UserError(f"norms is true or false, not {self.norms!r}")

    @property
    def lr(self) -> float:
        return float(self.settings["lr"])

    def option(self, name: str) -> Any:
        """One of the task's own, as said or by default."""
        return self.options.get(name, tasks.find(self.task).options[name])

    @property
    def name(self) -> str:
        """Of the run's folder: what it is in words, and a hash of its settings.

        Settings at their defaults do not count, so that a new one leaves old names as they are.
        """
        words = f"{self.task}-{self.model}-{self.optimizer}-s{self.seed}"
        defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self)}
        defaults["options"] = {}
        said = {k: v for k, v in self.as_json().items() if v != defaults[k] and k != "version"}
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return re.sub(r"[^\w.-]", "_", words) + "-" + digest[:8]

    def as_json(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Config":
        if not isinstance(values, Mapping) or not isinstance(values.get("version"), int):
            raise UserError(f"{where} is not the settings of a run")
        if values["version"] > VERSION:
            raise UserError(
                f"{where} was written by a newer sgdf (version {values['version']} of the "
                f"settings, this one knows {VERSION}): update sgdf, or start elsewhere with --out"
            )
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise unknown(f"setting in {where}:", name, known)
        try:
            given: dict[str, Any] = {**values, "milestones": tuple(values.get("milestones", ()))}
            return cls(**given)
        except TypeError as error:
            raise UserError(f"{where} is not the settings of a run: {error}") from None


# --- beside the paper's ---------------------------------------------------------------------------


def published(config: Config) -> PublishedValue | None:
    """The paper's number, if this is the experiment that gave it."""
    if config.optimizer not in paper.OPTIMIZERS or not follows_paper(config):
        return None
    recipe = paper.settings(config.task, config.optimizer)
    if frozen(config.settings) == frozen(recipe):
        return paper.published(config.task, config.model, config.optimizer)
    for preset in paper.PRESETS.values():  # a figure's curves have settings of their own
        for cell in preset.cells:
            same_place = (cell.task, cell.model, cell.optimizer) == (
                config.task, config.model, config.optimizer
            )  # fmt: skip
            if same_place and frozen(config.settings) == frozen({**recipe, **cell.overrides}):
                return cell.published
    return None


def follows_paper(config: Config) -> bool:
    """Trained as long, on the same data, from such weights, and measured as in the paper."""
    try:
        protocol = paper.protocol(config.task, config.model)
    except UserError:  # the paper does not have this task
        return False
    # Of a task's options, weights from another file are as good as those that come by default.
    if config.options.keys() - {"weights"} or config.options.get("weights") == "random":
        return False
    wanted = dataclasses.asdict(protocol) | {"drop": protocol.gamma}
    wanted |= {"accumulate": tasks.find(config.task).accumulate, "data": "real", "validation": 0}
    names = wanted.keys() - {"gamma", "seeds", "note"}
    return all(getattr(config, name) == wanted[name] for name in names)


def frozen(value: Any) -> Any:
    """JSON that can be compared and hashed; 1 and 1.0 are the same setting."""
    if isinstance(value, Mapping):
        return tuple((name, frozen(value[name])) for name in sorted(value))
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


# --- from what a user says ----------------------------------------------------------------------

OWN = {"schedule", "milestones", "drop", "clip", "accumulate", "batch", "validation", "norms"}


def make(
    task: str,
    *,
    model: str | None = None,
    optimizer: str = "sgdf",
    seed: int = 0,
    epochs: int | None = None,
    precision: str = "tf32",
    data: str = "real",
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """The published settings of the task and optimizer, but for what is said otherwise."""
    protocol = tasks.find(task)
    said = dict(overrides or {})
    own = {name: getattr(protocol, name) for name in ("batch", "schedule", "clip", "accumulate")}
    own |= {name: said.pop(name) for name in OWN & said.keys()}
    options = {name: said.pop(name) for name in protocol.options if name in said}
    model = model or protocol.model
    epochs = epochs or protocol.epochs_of.get(model, protocol.epochs)
    # The published milestone, 150 of 200 epochs, at the same part of a run of any length.
    by_rule = (math.ceil(0.75 * epochs),) if own["schedule"] == "step" else ()
    milestones = own.pop("milestones", by_rule)
    entry = optimizers.find(optimizer)
    in_paper = optimizer in paper.OPTIMIZERS
    published = paper.settings(task, optimizer) if in_paper else entry.settings
    settings = {**published, **said}
    if "lr" not in settings:
        raise UserError(f"{optimizer} needs a learning rate: --set lr=...")
    check_number("lr", settings["lr"])
    entry.check(settings)
    return Config(
        task=task,
        model=model,
        optimizer=optimizer,
        seed=seed,
        epochs=epochs,
        settings=settings,
        milestones=tuple(milestones) if isinstance(milestones, Iterable) else (milestones,),
        precision=precision,
        data=data,
        options={name: v for name, v in options.items() if v != protocol.options[name]},
        **own,
    )


def check_number(name: str, value: Any) -> None:
    if not is_number(value):
        raise UserError(f"{name} is a number, not {value!r}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


def parse_setting(text: str) -> tuple[str, Any]:
    """`name=value`, the value as Python or TOML would write it, or a plain word."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"--set takes name=value, not {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file of settings, or one sentence that says where it is wrong."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None

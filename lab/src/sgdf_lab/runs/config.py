"""The settings of a run: everything that decides its numbers, and nothing else."""

import ast
import dataclasses
import difflib
import hashlib
import inspect
import json
import re
import tomllib
from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sgdf_lab import paper
from sgdf_lab.registry import optimizers, tasks
from sgdf_lab.registry.models import CLASSIFIERS, context_of
from sgdf_lab.registry.optimizers import OptimizerRow
from sgdf_lab.registry.tasks import Task
from sgdf_lab.support.errors import UserError, message_of, unknown
from sgdf_lab.support.files import read_named
from sgdf_lab.support.numbers import is_number
from sgdf_lab.training import schedules

VERSION = 1
MAX_DEPTH = 8  # of lists in a setting
LONGEST_NAME = 255  # bytes, of a folder
TOML_LIMIT = 16 * 2**20  # bytes
MOST_BITS = 10_000  # of an integer
PRECISIONS = ("tf32", "bf16", "fp32")
DATA = ("real", "synthetic")


@dataclass(frozen=True)
class Config:
    """One run. An optimizer step sees `batch` examples, in `accumulate` micro-batches."""

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
    precision: str = "tf32"  # on a GPU; a CPU computes in float32
    data: str = "real"
    validation: int = 0  # training examples held out for validation
    norms: bool = False  # record the norms of gradients and of steps
    options: Mapping[str, Any] = field(default_factory=dict)  # of this task only
    warmup: float = 0  # a fraction of the run, or a number of steps, with a linear ramp of lr
    decay: float = 0.2  # of the schedule wsd: the last part of the run
    version: int = VERSION

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()
        for values in (self.settings, self.options):
            for name, value in values.items():
                check_plain(name, value)

    def _check_names(self) -> None:
        task = self.task_definition
        if not isinstance(self.model, str) or not task.takes_model(self.model):
            raise unknown("model", self.model, task.models or CLASSIFIERS)
        if not isinstance(self.optimizer, str):
            raise UserError(f"optimizer is a name, not {self.optimizer!r}")
        for name in ("settings", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise UserError(f"{name} is a table, not {getattr(self, name)!r}")
        for name in self.options:
            if name not in task.options:
                raise unknown(f"option of {self.task}:", name, task.options)
        check_number("drop", self.drop)
        schedules.check_schedule(self.schedule, self.schedule_shape)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.data not in DATA:
            raise unknown("kind of data", self.data, DATA)

    def _check_numbers(self) -> None:
        minimum = {"epochs": 1, "batch": 1, "accumulate": 1, "validation": 0, "seed": 0}
        for name, least in minimum.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{name} is an integer of at least {least}, not {value!r}")
        if self.task_definition.counts_steps:
            count("eval_every", self.option("eval_every"))
        if self.accumulate > self.batch:
            raise UserError(
                f"a batch of {self.batch} cannot be split into {self.accumulate} micro-batches"
            )
        if self.clip is not None and not (is_number(self.clip) and self.clip > 0):
            raise UserError(f"clip is a positive norm, not {self.clip!r}")
        if not isinstance(self.norms, bool):
            raise UserError(f"norms is true or false, not {self.norms!r}")

    @cached_property
    def task_definition(self) -> Task:
        return tasks.find(self.task)

    @property
    def schedule_shape(self) -> schedules.Shape:
        return schedules.Shape(self.milestones, self.drop, self.warmup, self.decay)

    @property
    def lr(self) -> float:
        return float(self.settings["lr"])

    def option(self, name: str) -> Any:
        """An option of the task, or its default."""
        return self.options.get(name, self.task_definition.options[name])

    @property
    def unit(self) -> str:
        """What the length of the run is counted in: "epoch" or "step"."""
        return "step" if self.task_definition.counts_steps else "epoch"

    @property
    def interval(self) -> int:
        """The number of units between two evaluations: 1 epoch, or `eval_every` steps."""
        return int(self.option("eval_every")) if self.task_definition.counts_steps else 1

    def at(self, evaluation: int) -> int:
        """After how many units an evaluation is."""
        return evaluation * self.interval

    def place_of(self, line: Mapping[str, Any]) -> int:
        """The step or epoch of a line of metrics; lines of epochs, and old ones, have no step."""
        at: int = self.at(line["epoch"])
        return line.get("step", at) if self.task_definition.counts_steps else at

    @property
    def total(self) -> int:
        """The length of the run, in its unit."""
        return self.at(self.epochs)

    @property
    def length(self) -> str:
        """The length of the run in words.

        >>> make("digits").length, make("text", overrides={"steps": 500}).length
        ('20 epochs', '500 steps')
        """
        return self.counted(self.epochs)

    def counted(self, epochs: int) -> str:
        """So many epochs of the run's files in words: as steps, if its task counts those."""
        return f"{self.at(epochs)} {self.unit}s"

    def place(self, epoch: int) -> str:
        """An epoch of the run's files in words: "epoch 3" or "step 150"."""
        return f"{self.unit} {self.at(epoch)}"

    @property
    def title(self) -> str:
        """The run in words, for a line of progress or a result."""
        return f"{self.task} {self.model} {self.optimizer} lr {self.lr:g} seed {self.seed}"

    @property
    def name(self) -> str:
        """The name of the run's folder: the run in words, and a part of its digest."""
        words = f"{self.task}-{self.model}-{self.optimizer}-s{self.seed}"
        ending = f"-{self.digest[:8]}"
        start = re.sub(r"[^\w.-]", "_", words).encode()[: LONGEST_NAME - len(ending)]
        return start.decode(errors="ignore") + ending

    @property
    def digest(self) -> str:
        """A hash of the settings.

        Settings at their defaults do not enter it, so that a new one keeps old names valid.
        """
        defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self)}
        defaults["options"] = {}
        changed = {k: v for k, v in self.identity.items() if v != defaults[k] and k != "version"}
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()

    @property
    def cell_key(self) -> Hashable:
        """Equal for runs that differ in their seed only."""
        key: Hashable = frozen({**self.identity, "seed": None})
        return key

    @property
    def identity(self) -> dict[str, Any]:
        """The settings as JSON; of the paths of data with a fingerprint, only the last part.

        A run knows such data by its content: it may lie elsewhere when the run resumes.
        """
        values = self.as_json()
        options: dict[str, Any] = values["options"]
        for name in self.task_definition.places if options.get("fingerprint") else ():
            if isinstance(path := options.get(name), str):
                options[name] = Path(path).name
        return values

    def as_json(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Config":
        """The inverse of `as_json`; `where` the values come from is part of every error."""
        if not isinstance(values, Mapping) or not isinstance(values.get("version"), int):
            raise UserError(f"{where} is not the settings of a run")
        if values["version"] > VERSION:
            raise UserError(
                f"{where} was written by a newer sgdf (settings version {values['version']}, this "
                f"one reads {VERSION}): update sgdf, or write to another folder with --out"
            )
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise unknown(f"setting in {where}:", name, known)
        try:
            given: dict[str, Any] = {**values, "milestones": tuple(values.get("milestones", ()))}
            return cls(**given)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        except (TypeError, OverflowError) as error:
            raise UserError(f"{where} is not the settings of a run: {error}") from None


# Settings of the run that `make` takes among its overrides, beside those of the optimizer.
RUN_SETTINGS = {
    "schedule", "milestones", "drop", "warmup", "decay", "clip", "accumulate", "batch",
    "validation", "norms",
}  # fmt: skip


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
    data_dir: str | Path | None = None,
) -> Config:
    """The published settings of the task and optimizer, with `overrides` in their place.

    Args:
        task: name of what is trained, for example "cifar10".
        model: name of the network; default: the task's.
        optimizer: name of a row of the lab, or the import path of a class.
        seed: of weights, order and augmentation.
        epochs: default: the task's.
        precision: "tf32", "bf16" or "fp32", on a GPU.
        data: "real", or "synthetic" for a generated stand-in.
        overrides: settings of the optimizer, options of the task, or any of `RUN_SETTINGS`; for a
            task that counts steps also `steps` or `tokens`, instead of epochs.
        data_dir: the folder of the user's own data, for a task that has no other; the run is
            named by what is in it.

    Examples:
        >>> config = make("digits", optimizer="sgdf", epochs=2, overrides={"lr": 0.1})
        >>> config.title
        'digits mlp sgdf lr 0.1 seed 0'
    """
    names = {"task": task, "optimizer": optimizer, "precision": precision, "data": data}
    for name, value in {**names, "model": "" if model is None else model}.items():
        if not isinstance(value, str):
            raise UserError(f"{name} is a name, not {value!r}")
    if epochs is not None and (type(epochs) is not int or epochs < 1):
        raise UserError(f"epochs is an integer of at least 1, not {epochs!r}")
    protocol = tasks.find(task)
    given = dict(overrides or {})
    of_run = {name: getattr(protocol, name) for name in ("batch", "schedule", "clip", "accumulate")}
    of_run |= {name: given.pop(name) for name in RUN_SETTINGS & given.keys()}
    options = {name: given.pop(name) for name in protocol.options if name in given}
    model = protocol.model if model is None else model
    if protocol.counts_steps:
        epochs = evaluations(protocol, model, epochs, given, of_run, options)
        if "milestones" in of_run:
            of_run["milestones"] = milestones_in_evaluations(
                protocol, of_run["milestones"], options
            )
    epochs = protocol.epochs_of.get(model, protocol.epochs) if epochs is None else epochs
    # The published milestone is 150 of 200 epochs: keep the fraction for any length.
    by_rule = (three_quarters(epochs),) if of_run["schedule"] == "step" else ()
    milestones = of_run.pop("milestones", by_rule)
    config = Config(
        task=task,
        model=model,
        optimizer=optimizer,
        seed=seed,
        epochs=epochs,
        settings=optimizer_settings(task, optimizer, given),
        milestones=tuple(milestones) if isinstance(milestones, Iterable) else (milestones,),
        precision=precision,
        data=data,
        options={name: v for name, v in options.items() if v != protocol.options[name]},
        **of_run,
    )
    return config if data_dir is None else with_data(config, Path(data_dir))


def with_data(config: Config, data_dir: Path | None) -> Config:
    """The run on the user's own data in a folder; as it was, if its task has other data."""
    identify = config.task_definition.identify
    if identify is None or config.data != "real":
        return config
    options = {**config.options, **identify(config.options, data_dir)}
    return dataclasses.replace(config, options=options)


def optimizer_settings(task: str, optimizer: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The published settings of an optimizer, or else its own, with `overrides`; checked."""
    row = optimizers.find(optimizer)
    definition = tasks.find(task)
    if not definition.of_paper:
        of_task = definition.settings_of.get(row.published_as, {})
        defaults = {**default_rate(row), **row.settings, **of_task}
    else:
        in_paper = row.published_as in paper.OPTIMIZERS  # wiener-sgd starts from sgd's settings
        defaults = paper.settings(task, row.published_as) if in_paper else dict(row.settings)
    settings = {**defaults, **overrides}
    lacks_amsgrad = "betas" in row.kinds and "amsgrad" not in row.kinds
    # As configurations for Adam have it: off is what these optimizers are.
    if lacks_amsgrad and settings.pop("amsgrad", False) is not False:
        raise UserError(
            f"{optimizer} has no amsgrad: leave it out, no maximum of second moments is kept"
        )
    refuse_unknown(settings, row, definition)
    if "lr" not in settings:
        raise UserError(f"{optimizer} needs a learning rate: --set lr=...")
    check_number("lr", settings["lr"])
    if definition.param_groups and "param_groups" in row.kinds and "decay_norms" not in settings:
        settings.setdefault("param_groups", True)
    if settings.get("param_groups") is False:  # as runs are that do not say it, of any optimizer
        del settings["param_groups"]
    checked = row.checked(settings)
    # A run that does not say it has the builder's None.
    nones = {name for name, value in row.fixed.items() if value is None}
    return {n: v for n, v in checked.items() if v is not None or n not in nones}


def refuse_unknown(settings: Mapping[str, Any], row: OptimizerRow, task: Task) -> None:
    """Answer a wrong name with the near ones, or with all that there are, by whose they are."""
    for name in () if row.any_setting else settings:
        if name in row.kinds:
            continue
        lengths = {
            n for n in GIVEN if task.counts_steps and (n == "steps" or task.kind == "language")
        }
        of_run = sorted(RUN_SETTINGS | lengths)
        of_task = sorted({*task.options} - {"fingerprint"})
        if difflib.get_close_matches(name, [*row.kinds, *of_run, *of_task]):
            raise unknown(f"setting of {row.name}", name, [*row.kinds, *of_run, *of_task])
        parts = {row.name: row.kinds, "the run": of_run, task.name: of_task}
        known = "; ".join(
            f"of {whose} {', '.join(names)}" for whose, names in parts.items() if names
        )
        raise UserError(f"there is no setting {name!r}; there are {known}")


def default_rate(row: OptimizerRow) -> dict[str, Any]:
    """The learning rate that a user's own class or function has by default, if any."""
    if row.settings:
        return {}
    parameter = inspect.signature(row.load()).parameters.get("lr")
    return {"lr": parameter.default} if parameter and is_number(parameter.default) else {}


# --- the length of a run -------------------------------------------------------------------------

GIVEN = ("steps", "tokens")  # settings that say how long a run is


def evaluations(
    task: Task,
    model: str,
    epochs: int | None,
    given: MutableMapping[str, Any],
    of_run: Mapping[str, Any],
    options: Mapping[str, Any],
) -> int:
    """The number of evaluations of a run; takes steps or tokens out of the `given` settings."""
    if epochs is not None:
        raise UserError(f"{task.name} counts steps, not epochs: --set steps=N")
    every = count("eval_every", options.get("eval_every", task.options["eval_every"]))
    known = GIVEN if "context" in task.options else GIVEN[:1]
    lengths = {name: count(name, given.pop(name)) for name in known if name in given}
    if len(lengths) == 2:
        raise UserError("give steps or tokens, not both")
    if "tokens" in lengths:
        window = count("context", options.get("context") or context_of(model))
        return -(-lengths["tokens"] // (every * count("batch", of_run["batch"]) * window))
    usual = task.epochs * task.options["eval_every"]  # however often it is evaluated
    return in_evaluations("steps", lengths.get("steps", usual), every)


def milestones_in_evaluations(task: Task, given: Any, options: Mapping[str, Any]) -> Any:
    """Milestones that a user gave in steps, as the loop counts them."""
    every = options.get("eval_every", task.options["eval_every"])
    values = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    return tuple(in_evaluations("milestones", count("a milestone", v), every) for v in values)


def in_evaluations(name: str, steps: int, every: int) -> int:
    if steps % every:
        raise UserError(
            f"{name} are multiples of eval_every, {every}, which {steps} is not: give "
            f"{steps - steps % every or every}, or set eval_every"
        )
    return steps // every


def count(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise UserError(f"{name} is an integer of at least 1, not {value!r}")
    return value


def three_quarters(epochs: int) -> int:
    """Rounded up.

    >>> three_quarters(200), three_quarters(3)
    (150, 3)
    """
    return -(-3 * epochs // 4)


# --- what a setting may be -----------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """JSON as something that can be compared and hashed; 1 and 1.0 are equal."""
    if isinstance(value, Mapping):
        return tuple((name, frozen(value[name])) for name in sorted(value))
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def check_number(name: str, value: Any) -> None:
    if not is_number(value):
        raise UserError(f"{name} is a number, not {value!r}")


def check_plain(name: str, value: Any, depth: int = 0) -> None:
    """Refuse what JSON cannot hold, such as a date of TOML, and lists in lists in lists."""
    if depth > MAX_DEPTH:
        raise UserError(f"{name} is nested more than {MAX_DEPTH} times")
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif value is None or isinstance(value, bool | str) or is_number(value):
        parts = ()
    elif isinstance(value, int | float):
        why = f"is not finite: {value}" if isinstance(value, float) else "is too large a number"
        raise UserError(f"{name} {why}")
    else:
        kind = type(value).__name__
        raise UserError(f"{name} is a {kind}: a setting is a number, a word, true, false or a list")
    for part in parts:
        check_plain(name, part, depth + 1)


# --- settings as a user writes them --------------------------------------------------------------


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse `name=value`; the value is a Python literal, a TOML boolean or a plain word.

    >>> parse_setting("betas=(0.9, 0.99)"), parse_setting("nesterov=true")
    (('betas', (0.9, 0.99)), ('nesterov', True))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"--set takes name=value, not {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        return name, printable(name, ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return name, value
    except (RecursionError, MemoryError):  # thousands of signs or brackets
        raise UserError(f"{name} is nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; an error is one sentence that says where it is wrong."""
    text = read_named(path, limit=TOML_LIMIT)
    try:
        return dict(printable(str(path), tomllib.loads(text)))
    except RecursionError:
        raise UserError(f"{path} is nested too deeply") from None
    except ValueError as error:  # also an integer of thousands of digits
        raise UserError(f"{path} is not TOML: {message_of(error)}") from None


def printable(where: str, value: Any) -> Any:
    """The value, without integers that Python refuses to print, as a hexadecimal one may be."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise UserError(f"{where} has an integer of {value.bit_length():,} bits")
    parts = value.values() if isinstance(value, dict) else value
    for part in parts if isinstance(value, dict | list | tuple | set) else ():
        printable(where, part)
    return value

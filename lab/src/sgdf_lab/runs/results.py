"""What a run wrote as JSON, what result.json holds, and the sentence that tells of it.

It needs no torch: reports read runs on machines that train none.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sgdf_lab import paper
from sgdf_lab.paper import PublishedValue
from sgdf_lab.registry.tasks import Metric
from sgdf_lab.runs.config import Config, frozen
from sgdf_lab.support.errors import Held, UserError, describe
from sgdf_lab.support.files import read_text
from sgdf_lab.support.numbers import is_number

# --- the result of a run -------------------------------------------------------------------------


def summary_of(
    config: Config,
    metrics: Sequence[Mapping[str, Any]],
    times: Sequence[Mapping[str, Any]],
    status: str,
) -> dict[str, Any]:
    """The best epoch, which papers report, and the last one."""
    metric = config.task_definition.metric
    good = [line for line in metrics if not line.get("diverged")]
    measured = [line for line in good if line[metric.key] is not None]
    best = metric.best(line[metric.key] for line in measured) if measured else None
    return {
        "status": status,
        "epochs": metrics[-1]["epoch"],
        f"best_{metric.key}": best,
        "best_epoch": next((e["epoch"] for e in measured if e[metric.key] == best), None),
        f"final_{metric.key}": good[-1][metric.key] if good else None,
        "seconds": sum(line["seconds"] for line in times),
        **target_reached(config, measured, times),
    }


def target_reached(
    config: Config, lines: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The first evaluation at the metric's target, if it has one: steps or epochs, and seconds."""
    metric = config.task_definition.metric
    if metric.target is None:
        return {}
    first = next((e for e in lines if metric.reaches(e[metric.key], metric.target)), None)
    seconds = [line["seconds"] for line in times if first and line["epoch"] <= first["epoch"]]
    return {
        "target": metric.target,
        f"{config.unit}s_to_target": config.place_of(first) if first else None,
        "seconds_to_target": sum(seconds) if seconds else None,
    }


def check_result(config: Config, result: dict[str, Any]) -> None:
    """Raise a ValueError unless it has what `summary_of` writes."""
    if result["status"] not in ("finished", "diverged"):
        raise ValueError("its status is neither finished nor diverged")
    key = config.task_definition.metric.key
    for name in ("epochs", "seconds", "best_epoch", f"best_{key}", f"final_{key}"):
        if name not in result:
            raise ValueError(f"it has no {name}")
        is_none = result[name] is None and name not in ("epochs", "seconds")  # no finite metric
        if not is_none and not is_number(result[name]):
            raise ValueError(f"{name} is not a number")


# --- whether its files agree ---------------------------------------------------------------------

STATUSES = ("finished", "diverged", "failed")  # a run without result.json is unfinished


def check_run(
    folder: Path, config: Config, result: Mapping[str, Any] | None, metrics: Sequence[Any]
) -> None:
    """Raise a `UserError` unless the measurements are whole, and the result is theirs."""
    if result and result["status"] not in STATUSES:
        raise UserError(f"{folder / 'result.json'} has the unknown status {result['status']!r}")
    metric = config.task_definition.metric
    check_metrics(metrics, config, folder / "metrics.jsonl")
    if not result or result["status"] == "failed":
        return
    finished = result["status"] == "finished"
    if finished and len(metrics) != config.epochs:
        raise UserError(
            f"{folder} is damaged: it is finished, but metrics.jsonl has {len(metrics)} of "
            f"{config.epochs} epochs"
        )
    if finished and any(line.get("diverged") for line in metrics):
        raise UserError(f"{folder} is damaged: it is finished, but an epoch of it diverged")
    if not finished and not (metrics and metrics[-1].get("diverged")):
        raise UserError(
            f"{folder} is damaged: it diverged, but the last line of metrics.jsonl did not"
        )
    needed = [metric.key]
    if config.validation:  # what settings are chosen by
        needed.append(config.task_definition.validation_key)
    for key in needed if finished else ():
        if metrics[-1].get(key) is None:
            words = metric.words if key == metric.key else key.replace("_", " ")
            raise UserError(
                f"{folder} is damaged: it is finished, but has no {words} after the last epoch"
            )
    measured = summary_of(config, metrics, [], result["status"])
    for name in ("epochs", "best_epoch", f"best_{metric.key}", f"final_{metric.key}"):
        if name in result and result[name] != measured[name]:
            raise UserError(
                f"{folder} is damaged: its result has {name} {result[name]}, and metrics.jsonl "
                f"{measured[name]}"
            )


def check_metrics(lines: Sequence[Any], config: Config, path: Path) -> None:
    """The lines are in order, each has the metric, and every value is a number or null."""
    metric = config.task_definition.metric
    for epoch, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or line.get("epoch") != epoch:
            raise UserError(f"{path} is damaged: line {epoch} is not that of epoch {epoch}")
        if config.place_of(line) != config.at(epoch):
            raise UserError(f"{path} is damaged: line {epoch} is not that of {config.place(epoch)}")
        if not line.get("diverged") and metric.key not in line:
            raise UserError(f"{path} is damaged: epoch {epoch} has no {metric.words}")
        for name, value in line.items():
            if name != "diverged" and value is not None and not is_measured(value):
                raise UserError(f"{path} is damaged: {name} of epoch {epoch} is not a number")


def is_measured(value: Any) -> bool:
    """Whether the value is a number that charts can scale without an overflow."""
    return is_number(value) and abs(value) < 1e300


# --- in words -------------------------------------------------------------------------------------


def failure(error: str) -> dict[str, Any]:
    return {"status": "failed", "error": error}


def failure_from(error: BaseException) -> dict[str, Any]:
    """The result of a run that raised; `held` if another process holds its lock."""
    held = {"held": True} if isinstance(error, Held) else {}
    return {**failure(describe(error)), **held}


def outcome(config: Config, result: dict[str, Any]) -> str:
    """A run and its result in one sentence, with the published number if there is one."""
    if result["status"] == "failed":
        return f"{config.title}: failed: {result['error']}"
    if result["status"] == "diverged":
        return f"{config.title}: diverged in {config.place(result['epochs'])}"
    value, metric = published_value(config), config.task_definition.metric
    beside = f" (published {value.mean:.2f})" if value else ""
    best, final = (result[f"{which}_{metric.key}"] for which in ("best", "final"))
    if best is None or final is None:
        return f"{config.title}: finished, but its {metric.words} is not finite"
    reached = result.get(f"{config.unit}s_to_target")
    target = f", {metric.target:g} after {reached} {config.unit}s" if reached else ""
    return (
        f"{config.title}: best {metric.words} {metric.shown(best)}{beside} in "
        f"{config.place(result['best_epoch'])}, final {metric.shown(final)}{target}, "
        f"{result['seconds']:.0f} s"
    )


# --- which published number it may be compared with ----------------------------------------------


def published_value(config: Config, metric: Metric | None = None) -> PublishedValue | None:
    """The paper's number, if this run repeats the experiment behind it.

    For the metric that runs are compared by, or for another one of the task.
    """
    part = metric.column if metric else ""
    if metric and not part and metric != config.task_definition.metric:
        return None  # the paper does not have it
    if config.optimizer not in paper.OPTIMIZERS or not follows_paper(config):
        return None
    recipe = paper.settings(config.task, config.optimizer)
    settings = frozen(config.settings)
    if settings == frozen(recipe):
        return paper.published(config.task, config.model, config.optimizer, part)
    if part:
        return None
    run = (config.task, config.model, config.optimizer)
    for preset in paper.PRESETS.values():  # the curves of a figure have their own settings
        for cell in preset.cells:
            is_of_cell = run == (cell.task, cell.model, cell.optimizer)
            if is_of_cell and settings == frozen({**recipe, **cell.overrides}):
                return cell.published
    return None


def follows_paper(config: Config) -> bool:
    """Whether data, length, initial weights and evaluation are those of the paper."""
    try:
        protocol = paper.protocol(config.task, config.model)
    except UserError:  # the paper does not have this task
        return False
    # The same pretrained weights may come from another file; any other option is a change.
    if config.options.keys() - {"weights"} or config.options.get("weights") == "random":
        return False
    expected = dataclasses.asdict(protocol) | {
        "drop": protocol.gamma,
        "accumulate": config.task_definition.accumulate,
        "data": "real",
        "validation": 0,
        "warmup": 0,
    }
    names = expected.keys() - {"gamma", "seeds", "note"}
    return all(getattr(config, name) == expected[name] for name in names)


# --- reading what a run wrote --------------------------------------------------------------------


def read_config(folder: Path) -> Config:
    path = folder / "config.json"
    try:
        values = json.loads(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{folder} is not the folder of a run: it has no config.json") from None
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return Config.from_json(values, str(path))


def read_result(folder: Path, config: Config | None = None) -> dict[str, Any] | None:
    """The result of a run that has ended; with `config`, it has to be complete."""
    path = folder / "result.json"
    try:
        result = json.loads(read_text(path))
        if not isinstance(result, dict) or "status" not in result:
            raise ValueError("it is not the result of a run")
        if config is not None:
            check_result(config, result)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; remove it and run the same command again"
        ) from None
    return result


def read_end(folder: Path, config: Config | None = None) -> dict[str, Any] | None:
    """The result of a run, or its recorded failure, if any. A result overrides a failure."""
    result = read_result(folder, config)
    if result is not None:
        return result
    try:
        text = read_text(folder / "failure.json")
        return {"status": "failed", "error": str(json.loads(text)["error"])}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines; the last one may be a killed process's unfinished write."""
    lines = read_text(path).splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_object(path: Path) -> dict[str, Any]:
    """What a file holds that a run can do without; nothing if it cannot be read."""
    try:
        return dict(json.loads(read_text(path)))
    except (OSError, ValueError, RecursionError, TypeError):
        return {}


def as_line(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def read_checked(folder: Path, config: Config) -> dict[str, Any] | None:
    """The end of a run, if it has one, and its files are those of this run and agree."""
    end = read_end(folder, config)
    if end is None or end["status"] == "failed":
        return end
    check_settings_of(folder, config)
    path = folder / "metrics.jsonl"
    try:
        lines = read_lines(path)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    check_run(folder, config, end, lines)
    return end


class ForeignRun(UserError):
    """The folder has another run than its name says."""


def check_settings_of(folder: Path, config: Config) -> None:
    """Raise `ForeignRun` if the folder has the settings of another run, as a copy would."""
    if read_config(folder).identity != config.identity:
        path = folder / "config.json"
        raise ForeignRun(f"{path} has other settings than this run: move the folder away")

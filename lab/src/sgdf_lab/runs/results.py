"""The result of a run: what result.json holds, and the sentence that tells of it."""

from typing import Any

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.published import published_value
from sgdf_lab.support.errors import Held, describe
from sgdf_lab.support.numbers import is_number


def summary_of(
    config: Config, metrics: list[dict[str, Any]], times: list[dict[str, Any]], status: str
) -> dict[str, Any]:
    """The best epoch, which papers report, and the last one."""
    metric = config.task_definition.metric
    good = [line for line in metrics if not line.get("diverged")]
    measured = {line["epoch"]: line[metric.key] for line in good if line[metric.key] is not None}
    best = metric.best(measured.values()) if measured else None
    return {
        "status": status,
        "epochs": metrics[-1]["epoch"],
        f"best_{metric.key}": best,
        "best_epoch": next((epoch for epoch, value in measured.items() if value == best), None),
        f"final_{metric.key}": good[-1][metric.key] if good else None,
        "seconds": sum(line["seconds"] for line in times),
        **target_reached(config, measured, times),
    }


def target_reached(
    config: Config, measured: dict[int, float], times: list[dict[str, Any]]
) -> dict[str, Any]:
    """The first evaluation at the metric's target, if it has one: steps or epochs, and seconds."""
    metric = config.task_definition.metric
    if metric.target is None:
        return {}
    first = next((e for e, v in measured.items() if metric.reaches(v, metric.target)), None)
    seconds = [line["seconds"] for line in times if first is not None and line["epoch"] <= first]
    return {
        "target": metric.target,
        f"{config.unit}s_to_target": None if first is None else first * config.interval,
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
        return f"{config.title}: diverged in {config.unit} {result['epochs'] * config.interval}"
    value, metric = published_value(config), config.task_definition.metric
    beside = f" (published {value.mean:.2f})" if value else ""
    best, final = (result[f"{which}_{metric.key}"] for which in ("best", "final"))
    if best is None or final is None:
        return f"{config.title}: finished, but its {metric.words} is not finite"
    reached = result.get(f"{config.unit}s_to_target")
    target = f", {metric.target:g} after {reached} {config.unit}s" if reached else ""
    return (
        f"{config.title}: best {metric.words} {metric.shown(best)}{beside} in {config.unit} "
        f"{result['best_epoch'] * config.interval}, final {metric.shown(final)}{target}, "
        f"{result['seconds']:.0f} s"
    )

"""The result of a run: what result.json holds, and the sentence that tells of it."""

from typing import Any

from sgdf.lab.runs.config import Config
from sgdf.lab.runs.published import published_value
from sgdf.support.errors import Held, describe


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
    }


def failure(error: str) -> dict[str, Any]:
    return {"status": "failed", "error": error}


def failure_from(error: BaseException) -> dict[str, Any]:
    """The result of a run that raised; `held` if another process holds its lock."""
    held = {"held": True} if isinstance(error, Held) else {}
    return {**failure(describe(error)), **held}


def outcome(config: Config, result: dict[str, Any]) -> str:
    """A run and its result in one sentence, with the published number if there is one."""
    try:
        return _outcome(config, result)
    except (KeyError, TypeError, ValueError):  # result.json has any content
        return f"{config.title}: its result.json is damaged: remove it and run it again"


def _outcome(config: Config, result: dict[str, Any]) -> str:
    if result["status"] == "failed":
        return f"{config.title}: failed: {result['error']}"
    if result["status"] == "diverged":
        return f"{config.title}: diverged in {config.unit} {result['epochs'] * config.interval}"
    value, metric = published_value(config), config.task_definition.metric
    beside = f" (published {value.mean:.2f})" if value else ""
    best, final = (metric.shown(result[f"{which}_{metric.key}"]) for which in ("best", "final"))
    return (
        f"{config.title}: best {metric.words} {best}{beside} in {config.unit} "
        f"{result['best_epoch'] * config.interval}, final {final}, {result['seconds']:.0f} s"
    )

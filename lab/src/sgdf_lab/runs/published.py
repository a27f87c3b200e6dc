"""Which published number a run may be compared with."""

import dataclasses

from sgdf_lab import paper
from sgdf_lab.paper import PublishedValue
from sgdf_lab.registry.tasks import Metric
from sgdf_lab.runs.config import Config, frozen
from sgdf_lab.support.errors import UserError


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

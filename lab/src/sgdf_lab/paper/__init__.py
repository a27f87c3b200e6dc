"""What the paper published, and what it takes to run its experiments again.

>>> published("cifar10", "vgg11", "sgdf")
PublishedValue(mean=91.76, std=0.11, note='')
>>> settings("cifar10", "sgd")
{'lr': 0.1, 'momentum': 0.9, 'weight_decay': 0.0005}
>>> recipe("cifar10", "filter-adam").source
"ours: adam's of tab:cifarhyperparameters"
"""

from sgdf_lab.paper.presets import PRESETS, Preset, PresetCell, preset
from sgdf_lab.paper.published import (
    LEARNING_RATES,
    OPTIMIZERS,
    SEARCHES,
    TABLES,
    TITLES,
    PublishedTable,
    PublishedValue,
    Recipe,
    Search,
    TrainingProtocol,
    protocol,
    published,
    recipe,
    settings,
)

__all__ = [
    "LEARNING_RATES",
    "OPTIMIZERS",
    "PRESETS",
    "SEARCHES",
    "TABLES",
    "TITLES",
    "Preset",
    "PresetCell",
    "PublishedTable",
    "PublishedValue",
    "Recipe",
    "Search",
    "TrainingProtocol",
    "preset",
    "protocol",
    "published",
    "recipe",
    "settings",
]

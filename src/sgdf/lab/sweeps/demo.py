"""A small fair comparison: handwritten digits, about a minute on two cores.

Every optimizer gets the same search: three learning rates, picked on validation images, then
judged on test images that took no part in the choice.
"""

from sgdf.lab.runs import config as configs
from sgdf.lab.sweeps.plan import Sweep

SEEDS = (0, 1, 2)
EPOCHS = 20
VALIDATION = 300

# A sum with factor 0.9 is ten times an average, so momentum's grid is a tenth of SGDF's.
LEARNING_RATES = {
    "sgdf": (0.05, 0.15, 0.5),
    "sgd": (0.005, 0.015, 0.05),
    "adam": (0.0003, 0.001, 0.003),
    "filter-adam": (0.0003, 0.001, 0.003),
}
NOTE = (
    "Every optimizer had three learning rates to choose from, by validation accuracy. With three "
    "seeds and 360 test images this is a taste, not evidence."
)


def sweep(epochs: int = EPOCHS) -> Sweep:
    made = tuple(
        configs.make(
            "digits",
            optimizer=optimizer,
            seed=seed,
            epochs=epochs,
            overrides={"lr": lr, "validation": VALIDATION},
        )
        for optimizer, rates in LEARNING_RATES.items()
        for lr in rates
        for seed in SEEDS
    )
    return Sweep("demo", "Handwritten digits: four ways to descend", made, NOTE)

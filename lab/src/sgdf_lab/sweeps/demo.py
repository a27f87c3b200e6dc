"""A small fair comparison: handwritten digits, about a minute on two cores.

Every optimizer gets the same search: four learning rates, of which the best is neither the
smallest nor the largest. The choice is made on validation images, and the chosen one is evaluated
on test images that played no part in it.
"""

from sgdf_lab.runs import config as configs
from sgdf_lab.sweeps.plan import Grid

SEEDS = (0, 1, 2)
EPOCHS = 20
VALIDATION = 300

# SGD's momentum of 0.9 sums what SGDF averages, ten times as much: its grid is a tenth of SGDF's.
LEARNING_RATES = {
    "sgdf": (0.15, 0.5, 1.5, 5.0),
    "sgd": (0.015, 0.05, 0.15, 0.5),
    "adam": (0.003, 0.01, 0.03, 0.1),
    "filter-adam": (0.003, 0.01, 0.03, 0.1),
}
NOTE = (
    "Every optimizer had four learning rates to choose from, by validation accuracy. With three "
    "seeds and 360 test images this is a taste, not evidence."
)


def demo_sweep(epochs: int = EPOCHS) -> Grid:
    planned = tuple(
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
    return Grid("demo", "Handwritten digits: four ways to descend", planned, NOTE)

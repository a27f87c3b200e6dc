"""What `sgdf demo` trains: a small GPT on Python's own source, or digits."""

import sysconfig
from pathlib import Path
from typing import Any

from sgdf_lab.runs import config as configs
from sgdf_lab.support.files import write_atomically
from sgdf_lab.sweeps.plan import Grid

# --- a GPT on Python's standard library ----------------------------------------------------------

STEPS = 120
SEEDS = (0, 1)
#: No search here: of 1e-3, 2e-3 and 4e-3 AdamW did best at 2e-3 in 150 steps (one seed), and what
#: is swapped for it keeps its settings. Muon's rates were not searched at all: 2e-2 is within twice
#: what results/evidence/contest-gpt-encyclopedia chose, 4e-3 is twice AdamW's.
SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1},
    "nadamw": {"lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1},
    "filter-adamw": {"lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1},
    "muon": {"lr": 2e-2, "weight_decay": 0.1, "adamw_lr": 4e-3},
    "filter-muon": {"lr": 2e-2, "weight_decay": 0.1, "aux_lr": 4e-3},
}
TEXT = {
    "batch": 16,
    "context": 64,
    "eval_tokens": 8_192,
    "schedule": "cosine",
    "warmup": 0.05,
    "clip": 1.0,
}
GPT_NOTE = (
    "Every optimizer has one fixed setting, and its runs differ in the seed only: this is a look, "
    "not a comparison. Those at equal tuning are in docs/evidence.md."
)


def write_corpus(file: Path) -> Path:
    """Python's standard library in one text: the modules of this interpreter, by name."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [module.read_text(encoding="utf-8", errors="replace") for module in modules]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "\n".join(texts))
    return file


def gpt_sweep(corpus: Path, steps: int = STEPS) -> Grid:
    shared = {**TEXT, "corpus": str(corpus), "steps": steps, "eval_every": max(1, steps // 10)}
    planned = tuple(
        configs.make(
            "text",
            model="gpt-mini",
            optimizer=optimizer,
            seed=seed,
            overrides={**shared, **settings},
        )
        for optimizer, settings in SETTINGS.items()
        for seed in SEEDS
    )
    return Grid("demo", "A small GPT learns to write Python", planned, GPT_NOTE)


# --- handwritten digits --------------------------------------------------------------------------
# Every optimizer gets the same search: four learning rates, of which the best is neither the
# smallest nor the largest. The choice is made on validation images, and the chosen one is evaluated
# on test images that played no part in it.

DIGITS_SEEDS = (0, 1, 2)
EPOCHS = 20
VALIDATION = 300

# SGD's momentum of 0.9 sums what SGDF averages, ten times as much: its grid is a tenth of SGDF's.
LEARNING_RATES = {
    "sgdf": (0.15, 0.5, 1.5, 5.0),
    "sgd": (0.015, 0.05, 0.15, 0.5),
    "adam": (0.003, 0.01, 0.03, 0.1),
    "filter-adam": (0.003, 0.01, 0.03, 0.1),
}
DIGITS_NOTE = (
    "Every optimizer had four learning rates to choose from, by validation accuracy. With three "
    "seeds and 360 test images this is a taste, not evidence."
)


def digits_sweep(epochs: int = EPOCHS) -> Grid:
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
        for seed in DIGITS_SEEDS
    )
    return Grid("digits", "Handwritten digits: four ways to descend", planned, DIGITS_NOTE)

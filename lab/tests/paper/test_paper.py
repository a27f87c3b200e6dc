"""The published numbers: complete, usable as they are, and honest about their source."""

import contextlib

import pytest
import torch

from sgdf_lab import models, optimizers, paper, tasks
from sgdf_lab.paper import presets
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.results import follows_paper
from sgdf_lab.training.schedules import SCHEDULES

OPTIMIZERS = {
    *("sgdf", "filter-adam", "filter-adamw", "sgd", "sgd-ema", "sgd-cm", "adam", "adamw", "radam"),
    *("rmsprop", "msvag", "adabound", "adabelief", "yogi", "padam", "fromage", "lion", "eadam"),
    "sophia-g",
}
PAPER_TASKS = ("cifar10", "cifar100", "imagenet", "voc", "vit", "wgan-gp")
TASKS = (*PAPER_TASKS, "digits", "fashion-mnist")


def check(name, settings):
    """The lab's optimizer has these settings, and can be built with them."""
    assert settings["lr"] > 0
    weight = torch.nn.Parameter(torch.zeros(2))
    # The names are checked before an optional package is found missing.
    with contextlib.suppress(ModuleNotFoundError):
        optimizers.build_optimizer(name, [weight], settings, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "optimizers", "cells", "total"),
    [
        ("cifar", 10, 60, 4931.65),
        ("wiener-adam", 2, 6, 415.47),
        ("imagenet-resnet18", 10, 17, 1302.47),
        ("imagenet", 2, 12, 891.86),
        ("voc", 7, 7, 558.24),
        ("vit", 2, 24, 2187.96),
        ("wgan-gp", 9, 9, 1363.0),
        ("hessian", 8, 16, 8346.17),
    ],
)
def test_tables_are_complete_and_unchanged(name, optimizers, cells, total):
    table = paper.TABLES[name]
    assert len(table.rows) == optimizers
    assert sum(map(len, table.rows.values())) == cells
    assert table.rows.keys() <= OPTIMIZERS
    assert table.lower_is_better == (name in ("wgan-gp", "hessian"))
    values = [value for row in table.rows.values() for value in row.values()]
    assert all(value.std is not None for value in values) == (name in ("cifar", "wgan-gp"))
    # Of all means and deviations, as counted when each had been compared with the paper's source.
    assert sum(value.mean + (value.std or 0) for value in values) == pytest.approx(total, abs=0.001)


def test_sgdf_leads_its_tables_but_not_wgan_gp():
    for table in paper.TABLES.values():
        for column in table.rows.get("sgdf", {}):
            values = {name: row[column].mean for name, row in table.rows.items() if column in row}
            best = (min if table.lower_is_better else max)(values, key=values.__getitem__)
            assert best == {"wgan-gp": "adam", "hessian": "adamw"}.get(table.name, "sgdf")


@pytest.mark.parametrize(
    ("cell", "mean", "std"),
    [
        (("cifar10", "vgg11", "sgdf"), 91.76, 0.11),
        (("cifar100", "vgg11", "adam"), 56.27, 0.32),  # three seeds, not the 56.73 of one
        (("cifar100", "vgg11", "filter-adam"), 62.64, None),
        (("finetune-imagenet", "vit-l32", "sgdf"), 81.31, None),
    ],
)
def test_published_values(cell, mean, std):
    value = paper.published(*cell)
    assert (value.mean, value.std, value.note) == (mean, std, "")


def test_values_of_other_papers_say_so_and_others_are_none():
    assert "AdaBelief" in paper.published("wgan-gp", "dcgan", "sgd").note
    assert "Padam" in paper.published("imagenet", "resnet18", "adam").note
    assert "torchvision" in paper.published("imagenet", "resnet50", "sgd").note
    for cell in (
        ("digits", "mlp", "sgdf"),
        ("cifar10", "vgg11", "yogi"),
        ("cifar10", "resnet18", "sgdf"),
    ):
        assert paper.published(*cell) is None


@pytest.mark.parametrize(
    ("task", "name", "expected"),
    [
        ("cifar100", "sgdf", {"lr": 0.5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 5e-4}),
        ("cifar10", "lion", {"lr": 2e-5, "betas": (0.9, 0.99), "weight_decay": 0.1}),
        ("imagenet", "sgdf", {"lr": 0.5, "betas": (0.5, 0.999), "eps": 1e-8, "weight_decay": 1e-4}),
        ("vit", "sgd", {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.0}),
        ("wgan-gp", "yogi", {"lr": 0.01, "betas": (0.5, 0.999), "eps": 1e-8}),
        # Borrowed: from a relative, or CIFAR's with the decay of the task.
        ("voc", "sgd-cm", {"lr": 0.01, "beta": 0.9, "weight_decay": 1e-4}),
        ("vit", "lion", {"lr": 2e-5, "betas": (0.9, 0.99), "weight_decay": 0.0}),
        ("digits", "adam", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 5e-4}),
    ],
)
def test_settings(task, name, expected):
    assert paper.settings(task, name) == expected
    paper.settings(task, name)["lr"] = 7  # a copy
    assert paper.settings(task, name) == expected


def test_recipes_say_whose_they_are():
    borrowed = paper.recipe("cifar100", "filter-adam")
    assert borrowed.settings == paper.settings("cifar100", "adam")
    assert "tab:cifarhyperparameters" in borrowed.source
    assert paper.recipe("cifar10", "adam").source == "tab:cifarhyperparameters"
    for task, name in (("digits", "adam"), ("vit", "adam"), ("digits", "yogi")):
        assert paper.recipe(task, name).source.startswith("ours: ")


def test_every_optimizer_has_settings_that_its_constructor_takes():
    assert set(paper.OPTIMIZERS) == OPTIMIZERS
    assert optimizers.OPTIMIZERS.keys() >= OPTIMIZERS
    for name in optimizers.OPTIMIZERS.keys() - OPTIMIZERS:  # not the paper's: its row has settings
        check(name, optimizers.find(name).settings)
    for task in TASKS:
        for name in OPTIMIZERS:
            check(name, paper.settings(task, name))


def test_protocols():
    cifar = paper.protocol("cifar100")
    assert (cifar.epochs, cifar.batch, cifar.seeds) == (200, 128, (0, 1, 2))
    assert (cifar.schedule, cifar.milestones, cifar.gamma) == ("step", (150,), 0.1)
    assert paper.protocol("voc").milestones == (3,)
    assert paper.protocol("vit").clip == 1
    assert paper.protocol("imagenet").seeds == (2025,)
    for task in PAPER_TASKS:
        assert paper.protocol(task).schedule in SCHEDULES


def test_search_budgets_are_unequal():
    trials = {name: search.trials for name, search in paper.SEARCHES.items()}
    assert (trials["sgdf"], trials["sgd"], trials["adam"], trials["adamw"]) == (6, 6, 30, 150)
    assert trials.keys() == paper.TABLES["cifar"].rows.keys()
    assert paper.LEARNING_RATES["sgd"] == paper.LEARNING_RATES["sgdf"]
    assert paper.settings("cifar10", "lion")["lr"] not in paper.LEARNING_RATES["lion"]
    for name in trials.keys() - {"lion"}:
        assert paper.settings("cifar10", name)["lr"] in paper.LEARNING_RATES[name]


@pytest.mark.parametrize("preset", paper.PRESETS.values(), ids=lambda preset: preset.name)
def test_presets_can_be_run(preset):
    assert paper.preset(preset.name) is preset
    assert len({(cell.task, cell.model, cell.label) for cell in preset.cells}) == len(preset.cells)
    for cell in preset.cells:
        protocol = paper.protocol(cell.task, cell.model)
        assert (preset.seeds, preset.epochs) == (protocol.seeds, protocol.epochs)
        assert cell.model in (tasks.find(cell.task).models or models.NAMES)
        config = configs.make(
            cell.task, model=cell.model, optimizer=cell.optimizer, overrides=cell.overrides
        )
        assert follows_paper(config), "the defaults of a task are the paper's protocol"
        check(cell.optimizer, {**paper.settings(cell.task, cell.optimizer), **cell.overrides})


def test_presets_hold_what_they_promise():
    tables = {f"{task}-{model}" for task in presets.CIFAR for model in presets.CIFAR_MODELS}
    assert paper.PRESETS.keys() >= tables | {"wiener-adam", "correction", "momentum-factors"}
    for name in tables:
        cells = paper.preset(name).cells
        assert [cell.optimizer for cell in cells] == list(paper.TABLES["cifar"].rows)
        for cell in cells:
            assert f"{cell.task}-{cell.model}" == name
            assert cell.published == paper.published(cell.task, cell.model, cell.optimizer)
    wiener = {(c.model, c.optimizer): c.published.mean for c in paper.preset("wiener-adam").cells}
    assert len(wiener) == 6
    assert wiener["vgg11", "adam"] == 56.73
    correction = paper.preset("correction").cells
    assert [cell.overrides["correction"] for cell in correction] == [True, False] * 6
    assert all((cell.published is None) != cell.overrides["correction"] for cell in correction)


def test_presets_of_imagenet_and_of_fine_tuning():
    assert len(paper.preset("imagenet-resnet18").cells) == 10
    for model in presets.IMAGENET_MODELS[1:]:
        cells = paper.preset(f"imagenet-{model}").cells
        assert [cell.optimizer for cell in cells] == ["sgd", "sgdf"]
    for model in presets.VIT_MODELS:
        whole = paper.preset(model)
        parts = [paper.preset(f"{model}-{data}") for data in presets.FINETUNED]
        assert whole.cells == tuple(cell for part in parts for cell in part.cells)
        assert [len(preset.cells) for preset in (whole, *parts)] == [12, *[2] * 6]


def test_the_momentum_figure_has_one_learning_rate():
    figure = paper.preset("momentum-factors")
    assert figure.track_norms
    assert all(cell.overrides["lr"] == 0.1 for cell in figure.cells)
    factors = [
        cell.overrides["beta"]
        for cell in figure.cells
        if (cell.model, cell.optimizer) == ("resnet18", "sgd-cm")
    ]
    assert factors == [0, 0.5, 0.9]
    numbers = [cell for cell in figure.cells if cell.published]
    assert [(cell.model, cell.published.mean) for cell in numbers] == [("vgg11", 63.48)]

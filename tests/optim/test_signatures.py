"""Constructors spell out and document every argument, as torch.optim's do."""

import inspect
import re
from pathlib import Path

import pytest

import sgdf
from reference import OPTIMIZERS
from sgdf import SGDF, FilterAdam, FilterAdamW, WienerFilter, param_groups
from sgdf.filter import FilterSettings


@pytest.mark.parametrize("cls", [*OPTIMIZERS, WienerFilter, param_groups])
def test_every_argument_is_named_and_documented(cls):
    parameters = inspect.signature(cls).parameters.values()
    assert not [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    section = inspect.getdoc(cls).partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", section, re.MULTILINE) == [p.name for p in parameters]


@pytest.mark.parametrize("cls", [FilterAdam, FilterAdamW])
def test_the_filter_in_adam_takes_the_arguments_of_sgdf(cls):
    ours, theirs = (inspect.signature(c).parameters for c in (cls, SGDF))
    assert [name for name in ours if name != "second_moment"] == list(theirs)
    adam = {"lr": 1e-3, "second_moment": None}
    if cls is FilterAdamW:
        adam |= {"weight_decay": 1e-2, "decoupled_weight_decay": True, "gain_eps": 0.0}
    assert {name: p.default for name, p in ours.items()} == {
        **{name: p.default for name, p in theirs.items()},
        **adam,
    }


@pytest.mark.parametrize("cls", [SGDF, FilterAdam, FilterAdamW, WienerFilter])
def test_the_filter_has_one_set_of_defaults(cls):
    parameters = inspect.signature(cls).parameters
    assert FilterSettings() == tuple(parameters[name].default for name in FilterSettings._fields)


def test_only_the_files_that_contributing_names_know_a_setting_of_the_rule():
    """`correction` and `bias_correction` stand for a switch that somebody adds."""
    package = Path(sgdf.__file__).parent
    page = (package.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## To add a setting to the rule")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:src/sgdf/)?([\w/]+\.(?:py|cpp))`", section))
    used = re.compile(r"\.correction\b|\bcorrection\s*[:=]|['\"]correction['\"]|\bCORRECTION\b")
    know = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if used.search(file.read_text(encoding="utf-8"))
    }
    assert know
    assert know <= named
    assert all((package / name).exists() for name in named if not name.startswith("tests/"))

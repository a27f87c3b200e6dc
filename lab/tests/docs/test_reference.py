"""`help()` of every public name has all arguments, what each means, and an example."""

import inspect
import re

import pytest

from docs.public_names import figure_names, public_names

NAMES = dict(public_names())
FIGURES = dict(figure_names())


def parameters(thing):
    """Those of the call, without self."""
    return inspect.signature(thing).parameters


def section(thing, title):
    """A section of a docstring in Google's style."""
    match = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", (inspect.getdoc(thing) or "") + "\n", re.M)
    return match[1] if match else ""


@pytest.mark.parametrize("name", [*NAMES, *FIGURES])
def test_every_argument_is_spelled_out(name):
    for parameter in parameters({**NAMES, **FIGURES}[name]).values():
        assert parameter.kind is not parameter.VAR_KEYWORD, f"**{parameter.name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_described(name):
    described = re.findall(r"^    (\w+): \S", section(NAMES[name], "Args"), re.M)
    assert described == list(parameters(NAMES[name]))


@pytest.mark.parametrize("name", NAMES)
def test_there_is_an_example(name):
    assert ">>> " in section(NAMES[name], "Examples")


@pytest.mark.parametrize("name", [*NAMES, *FIGURES])
def test_it_begins_with_one_sentence(name):
    first = inspect.getdoc({**NAMES, **FIGURES}[name]).split("\n\n")[0]
    assert first.rstrip().endswith("."), first


@pytest.mark.parametrize("name", [name for name in NAMES if name.split(".")[1] != "lab"])
def test_the_paper_is_named_where_its_algorithm_is(name):
    if re.fullmatch(r"sgdf\.(optax\.)?(\w*sgdf|SGDF|\w*[aA]dam\w*|Momentum|\w*[fF]ilter)", name):
        assert "Signal Processing Meets SGD" in section(NAMES[name], "References")


def test_help_shows_the_arguments():
    import pydoc

    import sgdf

    text = pydoc.render_doc(sgdf.FilterAdamW, renderer=pydoc.plaintext)
    for name in parameters(sgdf.FilterAdamW):
        assert name in text.partition("Method resolution order")[0]

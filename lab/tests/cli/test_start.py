"""Help and mistyped words are answered at once: without torch, plotly or scipy."""

import json
import os
import subprocess
import sys

import pytest

from sgdf_lab.cli import names

HEAVY = {"torch", "numpy", "plotly", "scipy", "matplotlib", "rich", "sklearn", "ray"}

SCRIPT = """
import contextlib, io, json, sys
from sgdf_lab.cli.main import main

answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                code = main(words)
            except SystemExit as leaving:
                code = leaving.code
    heavy = sorted(set(json.loads(sys.argv[2])) & set(sys.modules))
    answers.append([code, out.getvalue() + err.getvalue(), heavy])
print(json.dumps(answers))
"""

HELP = [
    *([], ["train"], ["sweep"], ["reproduce"], ["demo"], ["report"], ["evidence"]),
    ["theory"],
    *(["bench"], ["bench", "step"], ["data"], ["data", "fetch"], ["analyze"]),
    *(["analyze", word] for word in ("hessian", "landscape", "path", "gradients")),
]
MISTAKES = {
    "trian digits": "did you mean train?",
    "train": "which task? There are digits, ",
    "train digits --epochs 0": "0 is not a positive whole number",
    "train digits --precision fp31": "did you mean fp32?",
    "sweep": "give a sweep file, or --preset lr-grid or budget or tuned",
    "evidence": "give a sweep file, or --preset lr-grid or budget or tuned",
    "report": "the following arguments are required: RUNS",
    "analyze hesian": "did you mean hessian?",
}


@pytest.fixture(scope="module")
def answers():
    """Of every command line in one process, with the heavy modules that it had by then."""
    lines = [[*words, "--help"] for words in HELP] + [line.split() for line in MISTAKES]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(lines), json.dumps(sorted(HEAVY))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    return {
        " ".join(line): answer for line, answer in zip(lines, json.loads(ran.stdout), strict=True)
    }


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_imports_nothing_heavy(answers, words):
    code, said, heavy = answers[" ".join([*words, "--help"])]
    assert (code, heavy) == (0, [])
    assert said.startswith("usage: sgdf")
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(("line", "sentence"), MISTAKES.items())
def test_mistakes_import_nothing_heavy(answers, line, sentence):
    code, said, heavy = answers[line]
    assert code in (1, 2)
    assert heavy == []
    assert sentence in said


def test_the_help_of_train_has_groups_and_ends_with_examples(answers):
    said = answers["train --help"][1]
    titles = [line for line in said.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == [
        *("options:", "what is trained:", "files:", "computing:"),
        *("tasks:", "models:", "optimizers:", "settings, for --set:", "examples:"),
    ]
    for line in (line for line in said.splitlines() if line.startswith("  sgdf ")):
        from sgdf_lab.cli.main import parse

        assert parse(line.split()[1:]).run


def test_the_names_of_the_help_are_those_of_the_registries():
    from sgdf_lab import data, models, optimizers, tasks
    from sgdf_lab.bench import contestants as shapes
    from sgdf_lab.bench import run
    from sgdf_lab.runs import config
    from sgdf_lab.sweeps import plan

    assert list(tasks.TASKS) == list(names.TASKS)
    assert models.NAMES == names.CLASSIFIERS
    assert list(optimizers.OPTIMIZERS) == list(names.OPTIMIZERS)
    assert list(data.DATASETS) == list(names.DATASETS)
    settings = {name for task in tasks.TASKS.values() for name in task.options}
    assert sorted(settings - {"fingerprint"}) == sorted(names.TASK_SETTINGS)
    for task in tasks.TASKS.values():
        kind = "finetune-*" if task.name.startswith("finetune-") else task.name
        shown = {
            name: given for key, given in names.OTHER_MODELS.items() for name in key.split(", ")
        }
        assert tuple(task.models) == shown.get(kind, ())
    assert plan.PRESET_NAMES == names.SEARCHES
    assert (config.PRECISIONS, config.DATA) == (names.PRECISIONS, names.DATA)
    assert config.LONGEST_NAME == names.LONGEST_NAME
    assert list(shapes.LISTS) == list(names.LISTS)
    for device, shown in names.DEFAULT_LISTS.items():
        assert shapes.default_lists(device) == list(shown)
    assert run.selectable() == [*names.CONTESTANTS, names.WITH_TARGETS]
    assert (run.REPEATS, run.SECONDS) == (names.REPEATS, names.SECONDS)


def test_the_package_shows_its_names_before_they_are_imported():
    code = (
        "import sys, sgdf; assert 'torch' not in sys.modules;"
        "assert set(sgdf.__all__) <= set(dir(sgdf));"
        "from sgdf import SGDF; assert SGDF is sgdf.SGDF is sgdf.optim.SGDF;"
        "assert 'torch' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

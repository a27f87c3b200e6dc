"""Help and mistyped words are answered at once: without torch or scipy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "scipy", "matplotlib", "rich", "sklearn", "ray"}

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
    """What every command line says, in one process, with the heavy modules that it had by then."""
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


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "jax"):
            raise ImportError(f"{name} is hidden")

sys.meta_path.insert(0, NoTorch())
from sgdf_lab import api
from sgdf_lab.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
ROOT = Path(__file__).parents[3]
NAME = "gpt-tiny-books-finals"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["train", "--help"],
        ["report", "results/cifar10-vgg11"],
        [
            *("evidence", f"benchmarks/evidence/finals/{NAME}.toml"),
            *("--runs", f"results/evidence/{NAME}/runs.jsonl"),
        ],
    ],
    ids=lambda words: words[0],
)
def test_help_report_and_evidence_need_no_torch(words, tmp_path):
    out = ["--out", str(tmp_path / "out.html")] if words[0] in ("report", "evidence") else []
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words, *out],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_package_shows_its_names_before_they_are_imported():
    code = (
        "import sys, sgdf; assert 'torch' not in sys.modules;"
        "assert set(sgdf.__all__) <= set(dir(sgdf));"
        "from sgdf import SGDF; assert SGDF is sgdf.SGDF is sgdf.optim.SGDF;"
        "assert 'torch' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

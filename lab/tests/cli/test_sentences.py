"""Whatever a user gives, a command answers with one sentence, and prints on any terminal."""

import io
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

import damage
from runs.commands import folder_in
from sgdf_lab.cli.main import main
from sgdf_lab.cli.options import make_printable
from sgdf_lab.support.errors import describe, one_line

QUICK = ["--data", "synthetic", "--epochs", "1", "--device", "cpu"]


@pytest.fixture
def sgdf(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; returns its exit code and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGDF_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(tmp_path)

    def command(*words: str) -> tuple[int, str]:
        try:
            code = main(words)
        except SystemExit as error:  # of argparse
            code = error.code
        return code, capsys.readouterr().err

    return command


def is_one_sentence(answer: str) -> bool:
    return answer.startswith("sgdf: ") and answer.count("\n") == 1 and "--debug" not in answer


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train --config", "sweep"])
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("weight_decay = 1979-05-27", "weight_decay is a number, not datetime.date"),
        ("eps = inf", "eps is a number, not inf"),
        ("lr = nan", "lr is a number, not nan"),
        ("betas = " + "[" * 5000 + "]" * 5000, "is nested too deeply"),
        ("eps = " + "9" * 5000, "it.toml is not TOML: Exceeds the limit"),
        ("batch = 0x" + "f" * 5000, "it.toml has an integer of 20,000 bits"),
    ],
)
def test_values_that_toml_has_and_json_lacks(sgdf, tmp_path, command, line, sentence):
    grid = "[grid]\ngain_scale = [1.0]\n" * (command == "sweep")
    (tmp_path / "it.toml").write_text(f"task = 'digits'\n[set]\n{line}\n{grid}")
    code, answer = sgdf(*command.split(), "it.toml")
    assert code == 1
    assert sentence in answer
    assert is_one_sentence(answer)


def test_a_users_optimizer_gets_no_dates_either(sgdf, tmp_path):
    (tmp_path / "own_dates.py").write_text("def build(params, lr, when): ...\n")
    (tmp_path / "it.toml").write_text(
        "task = 'digits'\noptimizer = 'own_dates.build'\n[set]\nlr = 1\nwhen = 1979-05-27\n"
    )
    code, answer = sgdf("train", "--config", "it.toml")
    assert code == 1
    assert "when is a date: a setting is a number, a word, true, false or a list" in answer


@pytest.mark.parametrize(
    ("given", "recorded"), [("int8", "int8"), ("bf16", "bfloat16"), ("torch.float32", "float32")]
)
def test_the_dtype_of_the_state(sgdf, tmp_path, given, recorded):
    words = ("train", "digits", "--optimizer", "filter-adam", *QUICK)
    assert sgdf(*words, "--set", f"state_dtype={given}") == (0, "")
    folder = folder_in(tmp_path / "runs")
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["state_dtype"] == recorded


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("task = [1]", "task is a name, not [1]"),
        ("task = 'digits'\noptimizer = 3", "optimizer is a name, not 3"),
        ("task = 'digits'\nmodel = []", "model is a name, not []"),
        ("task = 'digits'\nepochs = 0", "epochs is an integer of at least 1, not 0"),
        ("task = 'digits'\nepochs = 1e9", "epochs is an integer of at least 1, not 1000000000.0"),
        ("task = 'digits'\nseed = []", "seed is an integer or a list of them, not []"),
        ("task = 'digits'\nseed = [[1]]", "seed is an integer of at least 0, not [1]"),
        ("task = 'digits'\nset = 3", "it.toml: set is a table: write [set] above its settings"),
        ("task = 'digits'\noptimizer = 'builtins.int'", "builtins.int is neither an optimizer"),
    ],
)
def test_files_with_values_of_a_wrong_type(sgdf, tmp_path, lines, sentence):
    (tmp_path / "it.toml").write_text(lines)
    code, answer = sgdf("train", "--config", "it.toml")
    assert code == 1
    assert answer.startswith(f"sgdf: {sentence}")
    assert is_one_sentence(answer)


NOT_FILES = (*damage.ENDLESS, "a link to itself", "random bytes")


@pytest.mark.parametrize("command", ["train --config", "sweep", "evidence"])
@pytest.mark.parametrize("what", NOT_FILES)
def test_a_file_that_is_none(sgdf, tmp_path, command, what):
    """A pipe would block, and a device never end."""
    damage.SPECIAL[what](tmp_path / "it.toml")
    code, answer = sgdf(*command.split(), "it.toml")
    assert code == 1
    assert "it.toml" in answer
    assert is_one_sentence(answer)


# --- names of files -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "", "nul\0"])
def test_names_that_no_file_can_have(sgdf, name):
    code, answer = sgdf("train", "digits", *QUICK, "--out", name)
    assert code == 2
    assert "is too long: a name may have 255 bytes" in answer or "is not the name of a" in answer
    assert len(answer.splitlines()[-1]) < 300


def test_an_optimizer_with_a_long_name_has_a_folder(sgdf, tmp_path):
    name = "Long" * 100
    (tmp_path / "own_long.py").write_text(f"from torch.optim import SGD\nclass {name}(SGD): ...\n")
    words = ("--optimizer", f"own_long.{name}", "--set", "lr=0.1")
    assert sgdf("train", "digits", *QUICK, *words) == (0, "")
    assert len(folder_in(tmp_path / "runs").name) == 255


def test_a_result_with_wrong_or_missing_keys(sgdf, tmp_path):
    words = ("train", "digits", *QUICK)
    sgdf(*words)
    path = folder_in(tmp_path / "runs") / "result.json"
    whole = path.read_text()
    changes: list[dict[str, Any]] = [
        {"status": "failed"}, {"status": 3}, {"status": []}, {"status": float("nan")},
        {"epochs": {}}, {"epochs": None}, {"best_test_accuracy": "x"}, {"seconds": "long"},
        {"final_test_accuracy": float("nan")},
    ]  # fmt: skip
    for result in ({"status": "finished"}, *({**json.loads(whole), **c} for c in changes)):
        path.write_text(json.dumps(result))
        code, said = sgdf(*words)
        assert code == 1, result
        assert re.search(r"result\.json cannot be read: .*; remove it and run the same", said), said
    path.write_text(whole)
    assert sgdf(*words) == (0, "")


# --- a user's own code ----------------------------------------------------------------------------

OWN = """
import sys
from torch.optim import SGD

class TwoLines(SGD):
    def step(self, closure=None):
        raise type("Odd\\nName", (RuntimeError,), {})("one\\n  two\\u2028three")

class Exits(SGD):
    def step(self, closure=None):
        sys.exit("enough")

class ExitsEarly(SGD):
    def __init__(self, params, lr):
        sys.exit(3)

class Mute(SGD):
    def step(self, closure=None):
        class Silent(Exception):
            def __str__(self):
                raise ValueError
        raise Silent
"""
SENTENCES = {
    "TwoLines": "Odd Name: one two three",
    "Exits": "the code called sys.exit('enough')",
    "ExitsEarly": "own.ExitsEarly cannot be built with lr=0.1: the code called sys.exit(3)",
    "Mute": "Silent: an exception that cannot be shown",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_an_optimizer_that_fails(sgdf, tmp_path, name):
    (tmp_path / "own.py").write_text(OWN)
    words = ("--optimizer", f"own.{name}", "--set", "lr=0.1")
    code, answer = sgdf("train", "digits", *QUICK, *words)
    assert code == 1
    assert answer.removesuffix("\n").removesuffix(" (--debug shows where)") == (
        f"sgdf: {SENTENCES[name]}"
    )


def test_an_optimizer_that_fails_leaves_the_other_runs_of_a_sweep(sgdf, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    names = [*(f"own.{name}" for name in SENTENCES), "sgd"]
    (tmp_path / "it.toml").write_text(
        f"task = 'digits'\nepochs = 1\ndata = 'synthetic'\n[set]\nlr = 0.1\n"
        f"[grid]\noptimizer = {names}\n"
    )
    code, answer = sgdf("sweep", "it.toml", "--jobs", "1", "--device", "cpu")
    assert (code, answer) == (1, "sgdf: 4 of 5 runs failed; --retry tries them again\n")
    failures = [json.loads(p.read_text())["error"] for p in tmp_path.glob("runs/*/failure.json")]
    assert sorted(failures) == sorted(s for n, s in SENTENCES.items() if n != "ExitsEarly")
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 1


def test_a_module_that_exits_on_import(sgdf, tmp_path):
    (tmp_path / "own_exit.py").write_text("raise SystemExit(5)\n")
    code, answer = sgdf("train", "digits", "--optimizer", "own_exit.X")
    assert code == 1
    assert "cannot be loaded (the code called sys.exit(5))" in answer


def test_one_line():
    assert one_line(" one \r\n\t two\x85three  four ") == "one two three  four"
    assert len(one_line("x" * 10_000)) < 2100
    assert describe(ValueError("a\nb")) == "ValueError: a b"
    assert describe(MemoryError()) == "MemoryError"


# --- terminals that know few characters -----------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_in_any_encoding(sgdf, tmp_path, monkeypatch, encoding):
    """The table with ± and ✓, and a path that is not valid UTF-8."""
    for seed in ("0", "1"):
        assert sgdf("train", "digits", *QUICK, "--seed", seed)[0] == 0
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert main(["report", "runs", "-o", "p\udcffge.html"]) == 0
    assert main(["train", "digits", *QUICK, "--out", "r\udcffns"]) == 0
    assert main(["reproduce"]) == 0
    assert main(["data", "list"]) == 0
    stream.flush()
    shown = written.getvalue().decode(encoding)
    assert ("+-" in shown) == (encoding == "ascii")
    assert ("±" in shown) == (encoding == "utf-8")


def test_a_reader_that_stops_reading(tmp_path):
    """As in `sgdf data list | head -1`."""
    script = "import sys; from sgdf_lab.cli.main import main; sys.exit(main(['reproduce']))"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.close()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (141, b"")


def test_a_file_that_became_a_pipe(tmp_path):
    """The stream was made for a file, which has positions; a pipe has none."""
    reading, writing = os.pipe()
    with open(tmp_path / "log", "w", encoding="ascii") as stream:
        os.dup2(writing, stream.fileno())
        os.close(writing)
        make_printable(stream)
        stream.write("1 ± 2")
    assert os.read(reading, 100) == b"1 +- 2"
    os.close(reading)

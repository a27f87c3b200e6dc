"""What commands print: tables, the first and the last line, exit codes."""

import io
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch

from sgdf_lab.cli import sweep, tools
from sgdf_lab.cli.main import main
from sgdf_lab.theory.result import Check, Result

rich_console = pytest.importorskip("rich.console")


def result(name, printed, measured, error):
    check = Check("a check of some length: the mean over 500 steps", printed, "<=", measured, error)
    return Result(name, name, "lem:a_long_label_of_the_paper", "", "", (check,), "", (), None)


RESULTS = [
    result("a-statement-with-a-name", 2.375, 13.92, 0.0312),
    result("sde", 1.25e-300, -4.125e-12, 3e-14),
]


def in_width(thing, width):
    console = rich_console.Console(file=io.StringIO(), width=width, highlight=False)
    console.print(thing)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_statements_fit_with_their_numbers(width):
    shown = in_width(tools.theory_table(RESULTS, width), width)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for number in ("<= 2.38", "13.9 ± 0.03", "<= 1.25e-300", "-4.13e-12 ± 3e-14"):
        assert number in shown


@pytest.mark.parametrize("columns", ["80", None])
@pytest.mark.parametrize("words", [["reproduce"], ["data", "list"]], ids=" ".join)
def test_lists_fit_80_columns_and_are_whole_in_a_pipe(
    monkeypatch, capsys, tmp_path, columns, words
):
    monkeypatch.setenv("SGDF_DATA", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    table, _, after = shown.partition("\n\nsgdf ")
    assert after, "the last line says what to do next"
    lines = table.splitlines()[3:]
    if columns:
        assert max(map(len, lines)) <= 80
    elif words == ["reproduce"]:
        from sgdf_lab import paper

        assert len([line for line in lines if line[0] != "─"]) == len(paper.PRESETS)


def test_a_preset_has_its_numbers_in_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    sweep.show_presets()
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("cifar10-vgg11"))
    assert line.split()[-3:] == ["10", "3", "200"]


# --- the first line says what a command does, the last what to do next ---------------------------


QUICK = ["--data", "synthetic", "--epochs", "1", "--device", "cpu", "--set", "batch=512"]
COMMANDS = {
    "train": (["train", "digits", *QUICK, "--seed", "0", "1"], "sgdf, lr 0.5, 2 seeds", "report"),
    "report": (["report", "runs"], "2 runs of runs", "report.html"),
    "sweep": (["sweep", "it.toml", "--jobs", "1", "--device", "cpu"], "one at a time", "it.html"),
    "theory": (["theory", "--only", "gradient-sum"], "1 statement", "theory/theory.html"),
}


def test_first_and_last_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "it.toml").write_text(
        "task = 'digits'\nepochs = 1\ndata = 'synthetic'\nset = {batch = 512}\n"
        "[grid]\nlr = [0.1, 0.2]\n"
    )
    for name, (words, what, after) in COMMANDS.items():
        assert main(words) == 0
        first, *_, last = [line for line in capsys.readouterr().out.splitlines() if line]
        assert what in first, name
        assert after in last, name


# --- the exit code -------------------------------------------------------------------------------


SCRIPT = """
import atexit, sys
from sgdf_lab.cli import main

main.main = lambda: 3
atexit.register(print, "orderly")
print("the last line")
main.run()
"""


def test_the_installed_command_ends_as_python_m_does():
    (command,) = entry_points(group="console_scripts", name="sgdf")
    assert command.value == "sgdf_lab.cli.main:run"


@pytest.mark.parametrize(
    ("processes", "printed"), [(1, ["the last line", "orderly"]), (2, ["the last line"])]
)
def test_a_team_skips_the_shutdown_that_threads_of_gloo_could_abort(processes, printed):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "WORLD_SIZE": str(processes)},
    )
    assert (ended.returncode, ended.stdout.splitlines()) == (3, printed), ended.stderr


# --- sgdf bench ----------------------------------------------------------------------------------


def test_wrong_names_are_answered_with_near_ones(capsys):
    for option, wrong, near in (
        ("--lists", "resnet5", "resnet50"),
        ("--only", "sgdf-fsed", "sgdf-fused"),
    ):
        assert main(["bench", "step", option, wrong]) == 1
        assert f"did you mean {near}" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_cuda_is_one_sentence(capsys):
    assert main(["bench", "step", "--device", "cuda"]) == 1
    assert "there is no CUDA device here" in capsys.readouterr().err

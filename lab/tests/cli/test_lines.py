"""The first line says what a command does and where it writes, the last what to do next."""

import pytest

from sgdf_lab.cli.main import main

QUICK = ["--data", "synthetic", "--epochs", "1", "--device", "cpu", "--set", "batch=512"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Of every command, in one folder: two runs are trained once."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("lines")
    commands = {
        "train": ["train", "digits", *QUICK, "--seed", "0", "1"],
        "one": ["train", "digits", *QUICK],
        "report": ["report", "runs"],
        "sweep": ["sweep", "it.toml", "--jobs", "1", "--device", "cpu"],
        "theory": ["theory", "--only", "gradient-sum"],
    }
    said = {}
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")  # as on a terminal
        patch.delenv("NO_COLOR", raising=False)
        (folder / "it.toml").write_text(
            "task = 'digits'\nepochs = 1\ndata = 'synthetic'\nset = {batch = 512}\n"
            "[grid]\nlr = [0.1, 0.2]\n"
        )
        for name, words in commands.items():
            with contextlib.redirect_stdout(io.StringIO()) as out:
                assert main(words) == 0
            said[name] = [line for line in out.getvalue().splitlines() if line]
    return said


@pytest.mark.parametrize(
    ("command", "first", "last"),
    [
        (
            "train",
            "Training digits, mlp, sgdf, lr 0.5, 2 seeds, 1 epoch on cpu; written to runs",
            "sgdf report runs compares the runs there",
        ),
        (
            "one",
            "Training digits, mlp, sgdf, lr 0.5, seed 0, 1 epoch on cpu; written to runs",
            "sgdf report runs compares the runs there",
        ),
        ("report", "Comparing 2 runs of runs", "The page is in report.html"),
        (
            "sweep",
            "2 runs on cpu, one at a time, written to runs; the same command resumes them",
            "The page is in runs/it.html",
        ),
        (
            "theory",
            "Checking 1 statement by simulation; page, numbers and figures go to theory",
            "The page is in theory/theory.html",
        ),
    ],
)
def test_first_and_last_lines(lines, command, first, last):
    assert lines[command][0] == first
    assert lines[command][-1] == last

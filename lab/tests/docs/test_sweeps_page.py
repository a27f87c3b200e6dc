"""The example of docs/sweeps.md runs: its file, its commands and its python block, made shorter."""

import json
import re
import shlex

import pytest

from docs.markdown_blocks import ROOT, python_blocks
from sgdf_lab.cli.main import main

PAGE = ROOT / "docs" / "sweeps.md"
SHORTER = {
    "trials = 8": "trials = 2\nepochs = 1",
    "seeds = [1, 2, 3, 4, 5]": "seeds = [1, 2]",
    "[set]": "[set]\nbatch = 256",
}

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_example_of_equal_tuning(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text(encoding="utf-8")
    (example,) = [toml for toml in re.findall(r"```toml\n(.*?)```", text, re.S) if "trials" in toml]
    section = text.partition("## What equal tuning shows")[2].partition("\n## ")[0]
    commands = [shlex.split(line) for line in re.findall(r"^    sgdf (.*)$", section, re.M)]
    assert [words[0] for words in commands] == ["sweep", "evidence", "evidence"]
    monkeypatch.chdir(tmp_path)
    for long, short in SHORTER.items():
        assert long in example
        example = example.replace(long, short)
    (tmp_path / "digits.toml").write_text(example)
    for words in commands:
        training = ["--jobs", "1", "--device", "cpu"] if words[0] == "sweep" else []
        assert main([*words, *training]) == 0
    said = capsys.readouterr().out
    assert "How much tuning: 2 trials of each" in said
    assert "Against SGD, Nesterov" in said
    summary = json.loads((tmp_path / "results" / "digits" / "summary.json").read_text())
    assert [c["label"] for c in summary["contestants"]] == ["SGDF, K", "SGD, Nesterov"]
    assert summary["runs"] == 2 * (2 + 2)
    (code,) = [block.code for block in python_blocks(PAGE)]
    names = {"__name__": "example"}
    exec(compile(code, "docs/sweeps.md", "exec"), names)
    line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith("SGDF, K {'mean': ")

"""docs/own-data.md, followed to the letter with a few small pictures."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from paper.layouts import photograph
from sgdf_lab.cli.main import main
from sgdf_lab.reports import read_records
from sgdf_lab.tasks import find
from sgdf_lab.training.schedules import SCHEDULES

pytest.importorskip("torchvision")
pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = (Path(__file__).parents[3] / "docs" / "own-data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
FILES = {
    match[1]: block
    for kind, block in BLOCKS
    if kind and (match := re.match(r"# (\w+\.\w+)\n", block))
}
(SCRIPT,) = (block for kind, block in BLOCKS if kind == "python" and "sgdf" in block)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The files of the page, and photographs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for label, name in enumerate(("cat", "dog")):
        for i in range(6):
            photograph(tmp_path / "photos" / name / f"{i}.jpg", label, 10 * label + i)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    sys.modules.pop("networks", None)
    yield tmp_path
    sys.modules.pop("networks", None)


def test_the_page_has_examples():
    assert set(FILES) == {"rates.toml", "networks.py"}
    assert len(COMMANDS) == 5


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(place, capsys, command):
    program, *words = shlex.split(command)
    assert program == "sgdf"
    assert main([*words, "--device", "cpu"]) == 0, capsys.readouterr()
    assert all(record.finished for record in read_records("runs"))


def test_python(place, capsys):
    exec(compile(SCRIPT, "own-data.md", "exec"), {})
    assert "images resnet18 sgdf lr 0.1 seed 0" in capsys.readouterr().out
    assert (place / "report.html").stat().st_size > 10_000
    (record,) = read_records("runs")
    assert record.finished


def test_the_tables_are_complete():
    task = find("images")
    for name, value in {**task.options, "batch": task.batch, "schedule": task.schedule}.items():
        if name != "fingerprint":
            assert re.search(rf"\| `{name}` \| `?{value}`? \|", TEXT), name
    for name in SCHEDULES:
        assert re.search(rf"^\|.*`{name}`.*\|", TEXT, re.MULTILINE), name

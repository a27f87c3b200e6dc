"""CONTRIBUTING.md, followed to the letter in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sgdf
import sgdf_lab

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(title: str) -> str:
    """The code of a section."""
    section = TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return code


def insert_before(path: Path, after: str, end: str, line: str) -> None:
    """Insert a line at the end of the list that begins with `after`."""
    before, start, rest = path.read_text().partition(after)
    assert start, f"{path.name} has no {after}"
    inside, closing, tail = rest.partition(end)
    path.write_text(before + start + inside + "\n" + line.rstrip() + "," + closing + tail)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the package with one optimizer, dataset, task and chart more."""
    folder = tmp_path_factory.mktemp("house")
    (package,) = sgdf_lab.__path__
    lab = folder / "sgdf_lab"
    shutil.copytree(package, lab, ignore=shutil.ignore_patterns("__pycache__"))
    optimizers, tasks = (lab / "registry" / f"{name}.py" for name in ("optimizers", "tasks"))
    insert_before(optimizers, "_ROWS = (", "\n)  # fmt: skip\n", example("To add an optimizer"))
    insert_before(tasks, "_ROWS = (", "\n)\n", example("To add a task"))
    (lab / "data" / "stripes.py").write_text(example("To add a dataset"))
    [row] = re.findall(r'`("stripes": "[^`]+)`', TEXT)
    insert_before(lab / "registry" / "datasets.py", "DATASETS = {", "\n}\n", row)
    curves = lab / "reports" / "curves.py"
    insert_before(curves, "metrics = cell.", "\n    ]\n", " " * 8 + example("To add a figure"))
    home = folder / "data" / "stripes"
    home.mkdir(parents=True)
    arrays = {}
    for part, count in (("train", 64), ("test", 32)):
        labels = np.arange(count) % 2
        arrays[f"{part}_x"] = np.where(labels, 200, 20).astype(np.uint8).repeat(64)
        arrays[f"{part}_x"] = arrays[f"{part}_x"].reshape(count, 1, 8, 8)
        arrays[f"{part}_y"] = labels
    np.savez(home / "stripes.npz", **arrays)
    return folder


def command(folder: Path, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "sgdf_lab", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "COLUMNS": "300"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_dataset_is_listed(house):
    listed = command(house, "data", "list", "--data-dir", "data")
    assert re.search(r"stripes .* 64 / 32 .* yes", listed)


def test_the_optimizer_trains_the_task_and_the_chart_is_on_the_page(house):
    words = ["--optimizer", "adamax", "--data-dir", "data", "--device", "cpu"]
    assert "best test accuracy 100.00" in command(house, "train", "stripes", *words)
    table = command(house, "report", "runs", "-o", "report.html")
    assert "adamax" in table
    assert "Learning rate" in (house / "report.html").read_text(encoding="utf-8")


def test_the_map_has_every_room():
    for package, prefix in ((sgdf, ""), (sgdf_lab, "lab/")):
        (place,) = package.__path__
        rooms = {path.parent.name for path in Path(place).glob("*/__init__.py")}
        for room in rooms:
            assert f"| `{prefix}{room}/` |" in TEXT, room

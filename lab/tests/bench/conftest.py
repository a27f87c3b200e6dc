import json

import pytest

from sgdf_lab.bench import measure
from sgdf_lab.bench.contestants import Contestant
from sgdf_lab.cli.main import main

EAGER = [
    "sgd-fused",
    "sgd-foreach",
    "adamw-fused",
    "sgdf-loop",
    "sgdf-foreach",
    "filteradam-foreach",
]


@pytest.fixture(autouse=True)
def small_copy(monkeypatch):
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**16)


@pytest.fixture
def eager():
    """Contestants that need nothing compiled."""
    return list(EAGER)


@pytest.fixture
def contestant():
    def create(optimizer, name="other", path="fused", **settings):
        return Contestant(name, optimizer, path, settings, 8)

    return create


@pytest.fixture
def run(tmp_path):
    """Run the command in this process and return the record it wrote."""

    def command(*arguments, only=EAGER, lists=("tiny",)):
        out = tmp_path / "results" / "bench.json"
        options = ["--device", "cpu", "--repeats", "2", "--seconds", "0.1", "--out", str(out)]
        chosen = ["--only", *only] if only else []
        assert main(["bench", "step", *options, "--lists", *lists, *chosen, *arguments]) == 0
        return json.loads(out.read_text())

    return command

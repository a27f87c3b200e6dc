"""`sgdf bench`: its table without rich, and its error messages."""

import json
import os
import subprocess
import sys

import pytest
import torch

from sgdf_lab.cli.main import main


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "sgdf_lab", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environment},
    )


def test_without_rich_the_table_is_plain(tmp_path):
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ModuleNotFoundError(name='rich')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    out = tmp_path / "bench.json"
    options = ["--device", "cpu", "--lists", "tiny", "--repeats", "2", "--only", "sgd-fused"]
    ran = python("bench", "step", *options, "--out", str(out), PYTHONPATH=paths)
    assert ran.returncode == 0, ran.stderr
    assert "tiny: warming up SGD fused\ntiny: measuring\n" in ran.stderr
    assert "optimizer  path   params  state B/param" in ran.stdout
    assert "SGD        fused  fp32             4.00" in ran.stdout
    assert json.loads(out.read_text())["complete"]


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

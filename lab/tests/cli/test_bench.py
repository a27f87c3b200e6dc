"""`sgdf bench`: its table without rich, and its error messages."""

import pytest
import torch

from sgdf_lab.cli.main import main


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

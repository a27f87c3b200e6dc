"""The recipes that need torch alone: the small GPT, and FSDP2 with distributed checkpoints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.testing import assert_close

from examples import fsdp2_checkpoint, nanogpt

pytestmark = pytest.mark.usefixtures("one_thread")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("optimizer", nanogpt.OPTIMIZERS)
def test_the_small_gpt_learns(optimizer: str) -> None:
    losses = nanogpt.main(nanogpt.arguments(["--optimizer", optimizer, "--steps", "30"]))
    assert losses[-1] < losses[0] - 2


def test_the_small_gpt_resumes_with_the_same_numbers(tmp_path: Path, capsys) -> None:
    given = ["--steps", "12", "--warmup", "3"]
    whole = nanogpt.main(nanogpt.arguments(given))
    given += ["--checkpoint", str(tmp_path / "gpt.pt")]
    first = nanogpt.main(nanogpt.arguments([*given, "--until", "6"]))
    assert first == whole[:6]
    assert "step    0" in capsys.readouterr().out
    assert nanogpt.main(nanogpt.arguments(given)) == whole
    assert "step    0" not in capsys.readouterr().out, "it started again"


def test_the_small_gpt_decays_matrices_alone() -> None:
    model = nanogpt.GPT(width=8, layers=1, context=4)
    decayed, rest = nanogpt.param_groups(model, weight_decay=0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        "blocks.layers.0.self_attn.in_proj_weight",
        "blocks.layers.0.self_attn.out_proj.weight",
        "blocks.layers.0.linear1.weight",
        "blocks.layers.0.linear2.weight",
        "head.weight",
    }
    assert len(decayed["params"]) + len(rest["params"]) == len(names)


# --- FSDP2 --------------------------------------------------------------------------------------


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a group of one, as torchrun would start it."""
    group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in group.items():
        monkeypatch.setenv(name, value)


def run_two_processes(folder: Path, until: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    command += [EXAMPLES / "fsdp2_checkpoint.py", folder, "--until", str(until)]
    group = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {key: value for key, value in os.environ.items() if key not in group}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 processes" in done.stdout


def saved_in(folder: Path) -> dict:
    dcp_to_torch_save(folder, folder / "whole.pt")
    return torch.load(folder / "whole.pt", weights_only=False)


@pytest.mark.usefixtures("one_process")
def test_fsdp2_is_resharded_from_one_process_to_two_and_back(tmp_path: Path) -> None:
    whole = fsdp2_checkpoint.main(tmp_path / "whole", until=18)
    assert sum(whole[-6:]) < 0.7 * sum(whole[:6])

    shards = tmp_path / "shards"
    first = fsdp2_checkpoint.main(shards, until=6)
    run_two_processes(shards, until=12)
    files = {file.name for file in shards.glob("12/*.distcp")}
    assert files == {"__0_0.distcp", "__1_0.distcp"}, "each process was to write its shards"
    last = fsdp2_checkpoint.main(shards, until=18)

    # Two processes add gradients in another order than one.
    assert_close([*first, *last], whole[:6] + whole[12:], rtol=1e-4, atol=1e-6)
    resharded, alone = saved_in(shards / "18"), saved_in(tmp_path / "whole" / "18")
    assert_close(resharded["model"], alone["model"], rtol=1e-3, atol=1e-5)
    moments = resharded["optimizer"]["state"]
    assert_close(moments, alone["optimizer"]["state"], rtol=1e-3, atol=1e-5)
    assert {float(state["step"]) for state in moments.values()} == {18.0}


@pytest.mark.usefixtures("one_process")
def test_fsdp2_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    whole = fsdp2_checkpoint.main(tmp_path / "whole", until=8)
    first = fsdp2_checkpoint.main(tmp_path / "parts", until=4)
    assert first + fsdp2_checkpoint.main(tmp_path / "parts", until=8) == whole

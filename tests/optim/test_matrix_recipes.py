"""The recipes of docs/matrices.md, copied into files and run."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "matrices.md"
MARK = "<!-- run by tests/optim/test_matrix_recipes.py -->\n```python\n"


def recipes() -> list[str]:
    return [part.partition("```")[0] for part in PAGE.read_text(encoding="utf-8").split(MARK)[1:]]


def losses(recipe: str, folder: Path, **more: str) -> list[float]:
    """The losses that a recipe prints, by itself in a folder."""
    file = folder / "recipe.py"
    file.write_text(recipe, encoding="utf-8")
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    alone = {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, file], cwd=folder, env=os.environ | alone | more,
                          capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (line.split() for line in done.stdout.splitlines())
    found = [float(words[1]) for words in lines if words[:1] == ["loss"]]
    assert len(found) == 30
    return found


def fall(found: list[float]) -> bool:
    return sum(found[-5:]) < 0.9 * sum(found[:5])


def test_every_recipe_is_here():
    assert len(recipes()) == PAGE.read_text(encoding="utf-8").count("run by tests/optim") == 3


def test_nanogpt(tmp_path):
    assert fall(losses(recipes()[0], tmp_path))


def test_the_trainer_of_hugging_face(tmp_path):
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason="Hugging Face's Trainer is in sgdf[integrations]")
    assert fall(losses(recipes()[1], tmp_path, HF_HUB_OFFLINE="1"))


def test_fsdp2(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    of_torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    assert fall(losses(recipes()[2], tmp_path, MASTER_PORT=str(port), **of_torchrun))

"""Weights to begin with: where they lie, and what a file of them has to hold."""

from pathlib import Path
from typing import Any

import torch

from sgdf.support.errors import UserError


def find(name: str, said: Any, url: str | None) -> Path | None:
    """The file of the weights that a user asks for: `pretrained`, or a path; None for `random`.

    Nothing is downloaded unasked: `url` is up to a gigabyte, and looked for in torch's cache.
    """
    if said == "random":
        return None
    if not isinstance(said, str):
        raise UserError(f"weights is pretrained, random or the path of a file, not {said!r}")
    if said != "pretrained":
        path = Path(said).expanduser()
        if not path.is_file():
            raise UserError(
                f"there is no file of weights {path}: --set weights takes pretrained, random, or "
                "the path of a file"
            )
        return path
    if url is None:
        raise UserError(f"{name} has no published weights: --set weights=random, or a file's path")
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        raise UserError(
            f"the pretrained weights of {name} are not here: download {url} to {path}, or say "
            "--set weights=random, or =PATH of others"
        )
    return path


def read(path: Path) -> dict[str, Any]:
    """A state dict, also one inside of a checkpoint as `model`."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a reader may say of bytes that are no weights
        why = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a file of weights: {why}") from None
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        state = state["model"]
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise UserError(f"{path} is not a file of weights: it holds no names with their values")
    return dict(state)

"""Initial weights: where their file is, and reading it."""

from pathlib import Path
from typing import Any

import torch

from sgdf_lab.support.errors import UserError


def find_weights(name: str, choice: Any, url: str | None) -> Path | None:
    """The file for a user's choice: `pretrained` or a path; None for `random`.

    Nothing is downloaded: `url`, up to a gigabyte, is looked for in torch's cache.
    """
    if choice == "random":
        return None
    if not isinstance(choice, str):
        raise UserError(f"weights is pretrained, random or the path of a file, not {choice!r}")
    if choice != "pretrained":
        path = Path(choice).expanduser()
        if not path.is_file():
            raise UserError(
                f"there is no weights file {path}: --set weights takes pretrained, random, or the "
                "path of a file"
            )
        return path
    if url is None:
        raise UserError(f"{name} has no published weights: --set weights=random, or a file's path")
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        raise UserError(
            f"the pretrained weights of {name} are not here: download {url} to {path}, or use "
            "--set weights=random, or =PATH of others"
        )
    return path


def read_weights(path: Path) -> dict[str, Any]:
    """A state dict, or the one that a checkpoint holds as `model`."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails in many ways on other bytes
        why = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a weights file: {why}") from None
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        state = state["model"]
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise UserError(f"{path} is not a weights file: it holds no tensors by name")
    return dict(state)

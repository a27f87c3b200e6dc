"""torchvision's classifiers, for photographs; and files of initial weights."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models
from torchvision.models.vision_transformer import VisionTransformer

from sgdf_lab.models.own import build_own, check_outputs, is_own
from sgdf_lab.registry.tasks import IMAGENET_MODELS
from sgdf_lab.support.errors import UserError, reason_of, unknown

# Mean and standard deviation of ImageNet's pixels, with which the published weights were trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

CONVOLUTIONAL: dict[str, Callable[..., nn.Module]] = {
    **{name: partial(models.get_model, name.replace("-", "_")) for name in IMAGENET_MODELS},
    "resnet-tiny": lambda num_classes: models.ResNet(
        models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=num_classes
    ),
}
PATCH = 32  # pixels per side, of all three
TRANSFORMERS: dict[str, Callable[..., VisionTransformer]] = {
    "vit-b32": models.vit_b_32,
    "vit-l32": models.vit_l_32,
    "vit-tiny": lambda **sizes: VisionTransformer(
        patch_size=PATCH, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, **sizes
    ),
}


def build_vision_model(name: str, *, classes: int, size: int) -> nn.Module:
    """The named network for square images of `size` pixels per side; weights from torch's RNG.

    The head of a transformer is zero.
    """
    if is_own(name):
        return build_own(name, classes=classes, shape=(3, size, size))
    if name in CONVOLUTIONAL:
        return CONVOLUTIONAL[name](num_classes=classes)
    if name not in TRANSFORMERS:
        raise unknown("model", name, [*CONVOLUTIONAL, *TRANSFORMERS])
    if size % PATCH:
        raise UserError(f"{name} takes images of a multiple of {PATCH} pixels, not {size}")
    return TRANSFORMERS[name](image_size=size, num_classes=classes)


def build_any_model(name: str, *, classes: int, size: int) -> nn.Module:
    """As `build_vision_model`, or any classifier of torchvision by its own name."""
    if is_own(name) or name in TRANSFORMERS:
        return build_vision_model(name, classes=classes, size=size)
    try:
        if name in CONVOLUTIONAL:
            model = CONVOLUTIONAL[name](num_classes=classes)
        elif name in (names := models.list_models(module=models)):
            model = models.get_model(name, num_classes=classes, **needs_of(name, size))
        else:
            raise unknown("model", name, [*CONVOLUTIONAL, *TRANSFORMERS, *names])
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"{name} cannot be built for images of {size}x{size} pixels: {reason_of(error)}"
        ) from error
    check_outputs(name, model, classes=classes, shape=(3, size, size))
    return model


def needs_of(name: str, size: int) -> dict[str, Any]:
    """Arguments of torchvision's functions that depend on the images, or leave a single output."""
    if name.startswith("vit_"):
        return {"image_size": size}
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}


# --- initial weights ------------------------------------------------------------------------------


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


def load_but(new: str, model: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    """Load the weights of a file into all but the layers that begin with `new`."""
    try:
        body = {name: value for name, value in state.items() if not name.startswith(new)}
        missing, unexpected = model.load_state_dict(body, strict=False)
    except RuntimeError as error:
        # The first line of several is only a summary.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{path} does not fit the model: {lines[min(1, len(lines) - 1)]}") from None
    for name in missing:
        if not name.startswith(new):
            raise UserError(f"{path} does not fit the model: it has no {name}")
    for name in unexpected:
        raise UserError(f"{path} does not fit the model, which has no {name}")

"""torchvision's networks, for images of the size of photographs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from sgdf.lab.errors import LabError, unknown

# The mean and the deviation of ImageNet's pixels, by which the published weights were trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

CONVOLUTIONAL: dict[str, Callable[..., nn.Module]] = {
    "resnet18": models.resnet18,
    "resnet34": models.resnet34,
    "resnet50": models.resnet50,
    "vgg11-bn": models.vgg11_bn,
    "vgg13-bn": models.vgg13_bn,
    "densenet121": models.densenet121,
    "densenet161": models.densenet161,
    "resnet-tiny": lambda num_classes: models.ResNet(
        models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=num_classes
    ),
}
PATCH = 32  # pixels a side, of all three
TRANSFORMERS: dict[str, Callable[..., VisionTransformer]] = {
    "vit-b32": models.vit_b_32,
    "vit-l32": models.vit_l_32,
    "vit-tiny": lambda **sizes: VisionTransformer(
        patch_size=PATCH, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, **sizes
    ),
}
PUBLISHED = {
    "vit-b32": models.ViT_B_32_Weights.IMAGENET1K_V1,
    "vit-l32": models.ViT_L_32_Weights.IMAGENET1K_V1,
}


def build(name: str, *, classes: int, size: int, weights: str = "random") -> nn.Module:
    """The named network, for square images; what is not loaded comes from torch's global RNG.

    The head of a transformer is new, and zero.
    """
    if name in CONVOLUTIONAL:
        return CONVOLUTIONAL[name](num_classes=classes)
    if name not in TRANSFORMERS:
        raise unknown("model", name, [*CONVOLUTIONAL, *TRANSFORMERS])
    if size % PATCH:
        raise LabError(f"{name} takes images of a multiple of {PATCH} pixels, not {size}")
    model = TRANSFORMERS[name](image_size=size, num_classes=classes)
    if weights != "random":
        load(model, weights_file(name, weights))
    return model


def weights_file(name: str, weights: str) -> Path:
    """Where the weights lie: nothing is downloaded unasked, they are up to a gigabyte."""
    path = Path(weights).expanduser()
    if weights != "pretrained":
        if not path.is_file():
            raise LabError(
                f"there is no file of weights {path}: --set weights takes pretrained, random, or "
                "the path of a file"
            )
        return path
    if name not in PUBLISHED:
        raise LabError(f"{name} has no published weights: --set weights=random, or a file's path")
    url = PUBLISHED[name].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        raise LabError(
            f"the pretrained weights of {name} are not here: download {url} to {path}, or say "
            "--set weights=random, or =PATH of others"
        )
    return path


def load(model: VisionTransformer, path: Path) -> None:
    """All but the head, with the position embedding interpolated to the model's grid."""
    state = read(path)
    place = "encoder.pos_embedding"
    if not isinstance(found := state.get(place), torch.Tensor) or found.ndim != 3:
        raise LabError(f"{path} does not fit the model: it has no {place} of three dimensions")
    body = {name: value for name, value in state.items() if not name.startswith("heads.")}
    try:
        body = interpolate_embeddings(model.image_size, model.patch_size, body)  # type: ignore
        missing, unexpected = model.load_state_dict(body, strict=False)
    except (ValueError, RuntimeError) as error:
        # The first line of several only counts them.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise LabError(f"{path} does not fit the model: {lines[min(1, len(lines) - 1)]}") from None
    for name in missing:
        if not name.startswith("heads."):
            raise LabError(f"{path} does not fit the model: it has no {name}")
    for name in unexpected:
        raise LabError(f"{path} does not fit the model, which has no {name}")


def read(path: Path) -> dict[str, Any]:
    """A state dict, also one inside of a checkpoint as `model`."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a reader may say of bytes that are no weights
        why = str(error).partition("\n")[0]
        raise LabError(f"{path} is not a file of weights: {why}") from None
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        state = state["model"]
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise LabError(f"{path} is not a file of weights: it holds no names with their values")
    return dict(state)

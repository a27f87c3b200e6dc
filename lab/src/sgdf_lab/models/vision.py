"""torchvision's classifiers, for photographs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from sgdf_lab.models import weights
from sgdf_lab.models.own import build_own, check_outputs, is_own
from sgdf_lab.support.errors import UserError, reason_of, unknown

# Mean and standard deviation of ImageNet's pixels, with which the published weights were trained.
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
PATCH = 32  # pixels per side, of all three
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


def build_vision_model(
    name: str, *, classes: int, size: int, file: Path | None = None
) -> nn.Module:
    """The named network for square images of `size` pixels per side.

    Weights come from the file, which is for transformers only, and else from torch's global RNG.
    The head of a transformer is new, and zero.
    """
    if is_own(name):
        if file is not None:
            raise UserError(f"{name} makes its own weights: use --set weights=random")
        return build_own(name, classes=classes, shape=(3, size, size))
    if name in CONVOLUTIONAL:
        return CONVOLUTIONAL[name](num_classes=classes)
    if name not in TRANSFORMERS:
        raise unknown("model", name, [*CONVOLUTIONAL, *TRANSFORMERS])
    if size % PATCH:
        raise UserError(f"{name} takes images of a multiple of {PATCH} pixels, not {size}")
    model = TRANSFORMERS[name](image_size=size, num_classes=classes)
    if file is not None:
        load_weights(model, file)
    return model


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


def weights_file(name: str, choice: Any) -> Path | None:
    return weights.find_weights(name, choice, PUBLISHED[name].url if name in PUBLISHED else None)


def load_weights(model: VisionTransformer, path: Path) -> None:
    """Load all but the head, with the position embedding interpolated to the model's grid."""
    state = weights.read_weights(path)
    key = "encoder.pos_embedding"
    if not isinstance(embedding := state.get(key), torch.Tensor) or embedding.ndim != 3:
        raise UserError(f"{path} does not fit the model: it has no {key} of three dimensions")
    body = {name: value for name, value in state.items() if not name.startswith("heads.")}
    try:
        body = interpolate_embeddings(model.image_size, model.patch_size, body)  # type: ignore
        missing, unexpected = model.load_state_dict(body, strict=False)
    except (ValueError, RuntimeError) as error:
        # The first line of several is only a summary.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{path} does not fit the model: {lines[min(1, len(lines) - 1)]}") from None
    for name in missing:
        if not name.startswith("heads."):
            raise UserError(f"{path} does not fit the model: it has no {name}")
    for name in unexpected:
        raise UserError(f"{path} does not fit the model, which has no {name}")

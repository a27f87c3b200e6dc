"""ImageNet, and fine-tuning of vision transformers, by the paper's protocol.

Small datasets stay on the device; photographs are decoded from their files meanwhile.
"""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torchvision import transforms
from torchvision.models import ViT_B_32_Weights, ViT_L_32_Weights
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from sgdf_lab import data, tasks
from sgdf_lab.models import vision
from sgdf_lab.models.own import is_own
from sgdf_lab.paper.photos.datasets import FileDataset, ImageFolderDataset
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks import classify
from sgdf_lab.tasks.classify import Classifier, EvaluationImages
from sgdf_lab.tasks.photos import FileClassifier, centre_crop, decoded
from sgdf_lab.training.batches import Batches
from sgdf_lab.training.decoded import Transform
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.images import ResidentBatches, ResidentImages
from sgdf_lab.training.loop import Trainer

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

# Number of classes, what is trained on, and what it is evaluated on by name.
Data = tuple[int, Batches, dict[str, EvaluationImages]]


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if data or weights are missing; `build_trainer` lists the files."""
    name = config.task_definition.dataset
    has_classes = "classes" in config.task_definition.options  # CIFAR's are known
    tasks.check_integers(config, size=1, **({"classes": 0} if has_classes else {}))
    spec = data.find(name)
    if not isinstance(spec, ImageFolderDataset):
        classify.load_dataset(config.task, data_dir, config.data == "synthetic")
    elif config.data == "synthetic":
        raise UserError(f"there is no synthetic stand-in for {name}, whose images are files")
    else:
        spec.find(data_dir)
    weights_of(config)


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = SINGLE_PROCESS,
) -> Trainer:
    check(config, data_dir)
    are_files = isinstance(data.find(config.task_definition.dataset), ImageFolderDataset)
    load = decoded_data if are_files else resident_data
    classes, batches, evaluation = load(config, data_dir, device, team)
    with tasks.weights_by_seed(config):
        size, file = config.option("size"), weights_of(config)
        model = build_model(config.model, classes=classes, size=size, file=file)
    model = tasks.channels_last(model, device)
    trainer = FileClassifier if are_files else Classifier
    return trainer(config, model, batches, evaluation, device, compile=compile, team=team)


def weights_of(config: "Config") -> Path | None:
    """The file of weights that a run starts from; None: random weights, as on ImageNet."""
    if "weights" not in config.task_definition.options:
        return None
    return weights_file(config.model, config.option("weights"))


def resident_data(
    config: "Config", data_dir: Path | None, device: torch.device, team: Team
) -> Data:
    """Small images, which stay on the device and are enlarged and flipped there."""
    dataset = classify.load_dataset(config.task, data_dir, config.data == "synthetic")
    dataset = dataclasses.replace(dataset, mean=vision.MEAN, std=vision.STD)
    training, evaluation = classify.splits(config, dataset)
    size = config.option("size")
    batches = ResidentBatches(
        training, dataset, device, seed=config.seed, augmented=True, padding=0, enlarged=size
    )
    images: dict[str, EvaluationImages] = {
        name: ResidentImages(split, dataset, device, enlarged=size)
        for name, split in evaluation.items()
    }
    return dataset.classes, batches, images


def decoded_data(config: "Config", data_dir: Path | None, device: torch.device, team: Team) -> Data:
    """Images that are decoded from their files while the device works."""
    dataset = load_files(config.task_definition.dataset, data_dir, config.option("classes"))
    batches, images = decoded(
        config, dataset.train, {"test": dataset.test}, image_transforms(config), device, team
    )
    return len(dataset.classes), batches, images


@functools.lru_cache(maxsize=1)  # a million files; runs one after another mostly share them
def load_files(name: str, data_dir: Path | None, classes: int) -> FileDataset:
    spec = data.find(name)
    assert isinstance(spec, ImageFolderDataset)
    return spec.load(data_dir, classes)


def image_transforms(config: "Config") -> tuple[Transform, Transform]:
    """What is done to an image for training, and for evaluation.

    From random weights: the usual random crop, flipped or not, and the centre. For fine-tuning,
    where the paper gives none: the complete image resized, and for training flipped or not.
    """
    size = config.option("size")
    flip = transforms.RandomHorizontalFlip()
    if "weights" in config.task_definition.options:
        resize = transforms.Resize((size, size))
        return transforms.Compose([resize, flip]), resize
    return transforms.Compose([transforms.RandomResizedCrop(size), flip]), centre_crop(size)


# --- the network and its initial weights ----------------------------------------------------------

PUBLISHED = {
    "vit-b32": ViT_B_32_Weights.IMAGENET1K_V1,
    "vit-l32": ViT_L_32_Weights.IMAGENET1K_V1,
}


def build_model(name: str, *, classes: int, size: int, file: Path | None) -> nn.Module:
    """The network with random weights, or with those of a file, which is for transformers only."""
    if is_own(name) and file is not None:
        raise UserError(f"{name} makes its own weights: use --set weights=random")
    model = vision.build_vision_model(name, classes=classes, size=size)
    if file is not None and isinstance(model, VisionTransformer):
        load_weights(model, file)
    return model


def weights_file(name: str, choice: Any) -> Path | None:
    return vision.find_weights(name, choice, PUBLISHED[name].url if name in PUBLISHED else None)


def load_weights(model: VisionTransformer, path: Path) -> None:
    """Load all but the head, with the position embedding interpolated to the model's grid."""
    state = vision.read_weights(path)
    key = "encoder.pos_embedding"
    if not isinstance(embedding := state.get(key), torch.Tensor) or embedding.ndim != 3:
        raise UserError(f"{path} does not fit the model: it has no {key} of three dimensions")
    try:
        state = interpolate_embeddings(model.image_size, model.patch_size, state)  # type: ignore
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{path} does not fit the model: {error}") from None
    vision.load_but("heads.", model, state, path)

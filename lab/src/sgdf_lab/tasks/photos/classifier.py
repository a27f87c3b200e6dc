"""The trainer for photographs: small datasets stay on the device, files are decoded meanwhile."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torchvision import transforms

from sgdf_lab import data
from sgdf_lab.data import ImageFolderDataset
from sgdf_lab.data.image_folders import FileDataset
from sgdf_lab.models import vision
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks import classify
from sgdf_lab.tasks.classify import Classifier, EvaluationImages
from sgdf_lab.train.batches import Batches, seed_for
from sgdf_lab.train.distributed import ALONE, Team
from sgdf_lab.train.loop import Trainer
from sgdf_lab.train.pipelines.decoded import (
    DecodedBatches,
    DecodedImages,
    Normalisation,
    Transform,
)
from sgdf_lab.train.pipelines.resident import ResidentBatches, ResidentImages, hold_out_indices

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

THIN = 2  # times as long as wide: what is further out is cropped in any case

# Number of classes, what is trained on, and what it is evaluated on by name.
Data = tuple[int, Batches, dict[str, EvaluationImages]]


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if data or weights are missing; `build_trainer` lists the files."""
    name = config.task_definition.dataset
    for option in ("size", "classes"):
        value, least = config.options.get(option, 1), int(option == "size")
        if type(value) is not int or value < least:
            raise UserError(f"{option} is an integer of at least {least}, not {value!r}")
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
    team: Team = ALONE,
) -> Trainer:
    check(config, data_dir)
    are_files = isinstance(data.find(config.task_definition.dataset), ImageFolderDataset)
    load = decoded_data if are_files else resident_data
    classes, batches, evaluation = load(config, data_dir, device, team)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", config.seed))
        size, file = config.option("size"), weights_of(config)
        model = vision.build_vision_model(config.model, classes=classes, size=size, file=file)
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainer = FileClassifier if are_files else Classifier
    return trainer(config, model, batches, evaluation, device, compile=compile, team=team)


class FileClassifier(Classifier):
    """A classifier whose images are decoded by other processes."""

    def close(self) -> None:
        assert isinstance(self.batches, DecodedBatches)
        self.batches.close()


def weights_of(config: "Config") -> Path | None:
    """The file of weights that a run starts from; None: random weights, as on ImageNet."""
    if "weights" not in config.task_definition.options:
        return None
    return vision.weights_file(config.model, config.option("weights"))


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
    training, evaluation = dataset.train, {"test": dataset.test}
    if config.validation:
        classify.check_validation(config, len(training))
        kept, held = (i.numpy() for i in hold_out_indices(len(training), config.validation))
        training, evaluation["validation"] = training.only(kept), training.only(held)
    normalisation = Normalisation(vision.MEAN, vision.STD, device)
    for_training, for_evaluation = image_transforms(config)
    batches = DecodedBatches(training, for_training, normalisation, config, team)
    images: dict[str, EvaluationImages] = {
        name: DecodedImages(files, for_evaluation, normalisation)
        for name, files in evaluation.items()
    }
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


def centre_crop(size: int) -> Transform:
    """The usual one for evaluation: 224 of every 256 pixels."""
    return transforms.Compose(
        [middle, transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
    )


def middle(image: Image.Image) -> Image.Image:
    """A long, thin image without its ends, which enlarged would take gigabytes."""
    longest = THIN * min(image.size)
    if max(image.size) <= longest:
        return image
    width, height = (min(length, longest) for length in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))

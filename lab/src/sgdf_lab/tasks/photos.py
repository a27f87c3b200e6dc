"""A user's own images, in a folder per class, which are decoded while the device works."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image, ImageOps
from torchvision import transforms

from sgdf_lab import tasks
from sgdf_lab.data import class_folders
from sgdf_lab.data.class_folders import ClassFolders, ImageFiles
from sgdf_lab.data.dataset import check_fingerprint
from sgdf_lab.models import vision
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.tasks import classify
from sgdf_lab.tasks.classify import Classifier, EvaluationImages
from sgdf_lab.training.decoded import (
    DecodedBatches,
    DecodedImages,
    Normalisation,
    Transform,
)
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.images import hold_out_indices
from sgdf_lab.training.loop import Trainer

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

AUGMENTATIONS = ("crop", "flip", "none")
THIN = 2  # times as long as wide: what is further out is cropped in any case


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if the folder or an option is wrong; `build_trainer` tries the model."""
    check_options(config)
    find_images(config, data_dir)


def check_options(config: "Config") -> None:
    tasks.check_integers(config, size=1)
    augment = config.option("augment")
    if augment not in AUGMENTATIONS:
        raise unknown("augmentation", str(augment), AUGMENTATIONS)
    if config.data == "synthetic":
        raise UserError("there is no synthetic stand-in for images of your own")


def find_images(config: "Config", data_dir: Path | None) -> ClassFolders:
    """The images in the folder, which have to be those that the run was named by."""
    dataset = class_folders.read(data_dir)
    check_fingerprint(config.option("fingerprint"), dataset.named_files(), dataset.folder)
    return dataset


def build_model(config: "Config", dataset: ClassFolders) -> torch.nn.Module:
    with tasks.weights_by_seed(config):
        classes, size = len(dataset.classes), config.option("size")
        return vision.build_any_model(config.model, classes=classes, size=size)


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = SINGLE_PROCESS,
) -> Trainer:
    check_options(config)
    dataset = find_images(config, data_dir)
    if config.validation and "validation" in dataset.evaluation:
        raise UserError(f"{dataset.folder} has validation images: leave out validation=...")
    batches, images = decoded(
        config, dataset.train, dataset.evaluation, image_transforms(config), device, team
    )
    model = tasks.channels_last(build_model(config, dataset), device)
    trainer = FileClassifier(config, model, batches, images, device, compile=compile, team=team)
    if dataset.note:
        trainer.notes = (dataset.note,)
    return trainer


def decoded(
    config: "Config",
    training: ImageFiles,
    evaluation: Mapping[str, ImageFiles],
    image_transforms: tuple[Transform, Transform],
    device: torch.device,
    team: Team,
) -> tuple[DecodedBatches, dict[str, EvaluationImages]]:
    """The images to train on, less those held out for validation, and those to evaluate on."""
    parts = dict(evaluation)
    if config.validation:
        classify.check_validation(config, len(training))
        kept, held = (i.numpy() for i in hold_out_indices(len(training), config.validation))
        training, parts["validation"] = training.only(kept), training.only(held)
    normalisation = Normalisation(vision.MEAN, vision.STD, device)
    for_training, for_evaluation = image_transforms
    batches = DecodedBatches(training, for_training, normalisation, config, team)
    return batches, {
        name: DecodedImages(files, for_evaluation, normalisation) for name, files in parts.items()
    }


class FileClassifier(Classifier):
    """A classifier whose images are decoded from files by other processes."""

    def close(self) -> None:
        assert isinstance(self.batches, DecodedBatches)
        self.batches.close()


# --- transforms -----------------------------------------------------------------------------------


def upright(image: Image.Image) -> Image.Image:
    """As the camera was held; as it is if its EXIF is damaged, which a good image may have."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def image_transforms(config: "Config") -> tuple[Transform, Transform]:
    """What is done to an image for training, and for evaluation; cameras say how to turn theirs.

    crop: a random part of it, flipped or not; flip: all of it, flipped or not; none: all of it.
    """
    size, augment = config.option("size"), config.option("augment")
    flip = transforms.RandomHorizontalFlip()
    if augment == "crop":
        random = [upright, transforms.RandomResizedCrop(size), flip]
        return transforms.Compose(random), transforms.Compose([upright, centre_crop(size)])
    whole = [upright, transforms.Resize((size, size))]
    flipped = [*whole, flip] if augment == "flip" else whole
    return transforms.Compose(flipped), transforms.Compose(whole)


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

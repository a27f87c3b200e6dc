"""Photographs sorted into classes by torchvision's networks: ImageNet, and fine-tuning of ViT."""

import dataclasses
import functools
from pathlib import Path

import torch
from torchvision import transforms

from sgdf.lab import data, tasks
from sgdf.lab.data import ImageFolderDataset
from sgdf.lab.data.image_folders import FileDataset
from sgdf.lab.models import vision as models
from sgdf.lab.runs.config import Config
from sgdf.lab.tasks import classify
from sgdf.lab.tasks.classify import Classifier, Judged
from sgdf.lab.train.distributed import ALONE, Team
from sgdf.lab.train.loop import Batches, Trainer
from sgdf.lab.train.pipelines.decoded import Change, Look, Stream, Streamed
from sgdf.lab.train.pipelines.resident import Epochs, Images, held_out, seed_for
from sgdf.support.errors import UserError

Data = tuple[int, Batches, dict[str, Judged]]  # classes, what is trained on, what it is judged by


def check(config: Config, data_dir: Path | None) -> None:
    """Whether data and weights are there; the files of the data are looked at by `build`."""
    name = tasks.find(config.task).dataset
    for option in ("size", "classes"):
        value, least = config.options.get(option, 1), int(option == "size")
        if type(value) is not int or value < least:
            raise UserError(f"{option} is a whole number from {least} on, not {value!r}")
    spec = data.find(name)
    if not isinstance(spec, ImageFolderDataset):
        classify.load_dataset(config.task, data_dir, config.data == "synthetic")
    elif config.data == "synthetic":
        raise UserError(f"there is no synthetic stand-in for {name}, whose images are files")
    else:
        spec.find(data_dir)
    weights_of(config)


def build(
    config: Config,
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = ALONE,
) -> Trainer:
    check(config, data_dir)
    are_files = isinstance(data.find(tasks.find(config.task).dataset), ImageFolderDataset)
    found = streamed if are_files else resident
    classes, batches, judged = found(config, data_dir, device, team)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", config.seed))
        size, file = config.option("size"), weights_of(config)
        model = models.build_vision_model(config.model, classes=classes, size=size, file=file)
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    made = StreamClassifier if are_files else Classifier
    return made(config, model, batches, judged, device, compile=compile, team=team)


class StreamClassifier(Classifier):
    """Its images are decoded by other processes."""

    def close(self) -> None:
        assert isinstance(self.batches, Stream)
        self.batches.close()


def weights_of(config: Config) -> Path | None:
    """The file of weights that the run begins with; ImageNet's begin with random ones."""
    if "weights" not in tasks.find(config.task).options:
        return None
    return models.weights_file(config.model, config.option("weights"))


def resident(config: Config, data_dir: Path | None, device: torch.device, team: Team) -> Data:
    """Small images, which stay on the device as they are and are enlarged and flipped there."""
    dataset = classify.load_dataset(config.task, data_dir, config.data == "synthetic")
    dataset = dataclasses.replace(dataset, mean=models.MEAN, std=models.STD)
    training, judged = classify.splits(config, dataset)
    size = config.option("size")
    batches = Epochs(
        training, dataset, device, seed=config.seed, augmented=True, padding=0, enlarged=size
    )
    images = {name: Images(split, dataset, device, enlarged=size) for name, split in judged.items()}
    return dataset.classes, batches, dict(images)


def streamed(config: Config, data_dir: Path | None, device: torch.device, team: Team) -> Data:
    """Images that are decoded from their files, while the device works."""
    dataset = load_files(tasks.find(config.task).dataset, data_dir, config.option("classes"))
    training, judged = dataset.train, {"test": dataset.test}
    if config.validation:
        classify.check_validation(config, len(training))
        kept, held = held_out(len(training), config.validation)
        training, judged["validation"] = training.only(kept.numpy()), training.only(held.numpy())
    look = Look(models.MEAN, models.STD, device)
    for_training, for_judging = changes(config)
    batches = Stream(training, for_training, look, config, team)
    images = {name: Streamed(files, for_judging, look) for name, files in judged.items()}
    return len(dataset.classes), batches, dict(images)


@functools.lru_cache(maxsize=1)  # a million files; runs one after another mostly share them
def load_files(name: str, data_dir: Path | None, classes: int) -> FileDataset:
    spec = data.find(name)
    assert isinstance(spec, ImageFolderDataset)
    return spec.load(data_dir, classes)


def changes(config: Config) -> tuple[Change, Change]:
    """What is done to an image before training, and before judging.

    From the beginning: the usual random part of it, flipped or not, and the middle of it. For
    fine-tuning, of which the paper says nothing: all of it, squeezed, and for training flipped or
    not.
    """
    size = config.option("size")
    flip = transforms.RandomHorizontalFlip()
    if "weights" in tasks.find(config.task).options:
        whole = transforms.Resize((size, size))
        return transforms.Compose([whole, flip]), whole
    middle = transforms.Compose(
        [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
    )
    return transforms.Compose([transforms.RandomResizedCrop(size), flip]), middle

"""FID, the Fréchet distance between real and generated images by the features of a network:

    inception            the Inception network that FID is published with
    a run's folder       the network that this run trained, without its last layer
    package.module:name  a function that returns a network, or the network

Every network takes bytes, N x 3 x H x W, and returns N x D numbers.
"""

import hashlib
import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.image.fid import FrechetInceptionDistance, NoTrainInceptionV3

from sgdf_lab import data, models, plugins
from sgdf_lab.data import ArrayDataset
from sgdf_lab.runs.results import read_config
from sgdf_lab.runs.run_folder import read_checkpoint
from sgdf_lab.support.errors import UserError, reason_of
from sgdf_lab.support.files import open_regular
from sgdf_lab.support.numerics import full_precision
from sgdf_lab.training.checkpoints import DamagedCheckpoint
from sgdf_lab.training.distributed import Team

BATCH = 250  # images that go through the network at once


def parts(first: int, count: int) -> Iterator[slice]:
    """The `count` images from `first` on, in batches for the network."""
    for start in range(first, first + count, BATCH):
        yield slice(start, min(start + BATCH, first + count))


class PassThrough(nn.Module):
    """In place of torchmetrics' network: its inputs are features already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


class Distance:
    """FID from one set of real images to sets of generated ones; float64 except in the network.

    Every process of a team computes the features of its share, and all get the same distance.
    """

    def __init__(self, network: nn.Module, name: str, real: Iterator[Tensor], team: Team) -> None:
        self.network, self.name, self.team = network, name, team
        first = next(real)
        features = self._features(first)
        metric = FrechetInceptionDistance(
            PassThrough(features.shape[1]), reset_real_features=False, sync_on_compute=False
        )
        self.metric = metric.to(first.device)
        self.metric.update(features, real=True)
        for images in real:
            self.metric.update(self._features(images), real=True)
        self._sum("real")

    @torch.no_grad()
    def to(self, generated: Iterator[Tensor]) -> float:
        """The distance to these images."""
        self.metric.reset()
        for images in generated:
            self.metric.update(self._features(images), real=False)
        self._sum("fake")
        return float(self.metric.compute())

    def _sum(self, which: str) -> None:
        names = ("features_sum", "features_cov_sum", "features_num_samples")
        sums = [getattr(self.metric, f"{which}_{name}") for name in names]
        self.team.sum_(sums)
        if not all(bool(total.isfinite().all()) for total in sums):
            # MKL's eigenvalue routine writes out of bounds for NaN and would crash the process.
            images = "real" if which == "real" else "generated"
            raise UserError(
                f"features={self.name} gives features that are not finite, or too large to square, "
                f"for {images} images"
            )

    @torch.no_grad()
    def _features(self, images: Tensor) -> Tensor:
        try:
            with full_precision():
                features = self.network(images)
        except Exception as error:  # a user's network may raise anything
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"features={self.name} cannot take bytes of {tuple(images.shape)}: {reason}"
            ) from error
        if not isinstance(features, Tensor) or features.shape[:-1] != images.shape[:1]:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features)
            raise UserError(
                f"features={self.name} gives {shape} for {len(images)} images: it has to give a "
                "row of features for each"
            )
        return features.double()


# --- networks -------------------------------------------------------------------------------------

INCEPTION = "weights-inception-2015-12-05-6726825d.pth"
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
LARGEST = 1 << 28  # bytes; it has 96 million
INCEPTION_FROM = "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/"
KINDS = "inception, a run's folder, or package.module:name"


def check(name: str) -> None:
    """Raise a `UserError` if the network is missing, as far as can be told quickly."""
    if not isinstance(name, str) or not name:
        raise UserError(f"features is {KINDS}, not {name!r}")
    if name == "inception":
        inception_path()
    elif not Path(name).is_dir() and ":" not in name:
        raise UserError(f"there is no folder features={name}: it is {KINDS}")


def load(name: str, device: torch.device) -> nn.Module:
    """The network, on the device and in evaluation mode."""
    check(name)
    if name == "inception":
        network = inception()
    elif Path(name).is_dir():
        network = from_run(Path(name))
    else:
        network = by_path(name)
    return network.to(device)


# --- Inception ------------------------------------------------------------------------------------


def inception_path() -> Path:
    if importlib.util.find_spec("torch_fidelity") is None:
        raise UserError('features=inception needs torch-fidelity: pip install "sgdf-lab[vision]"')
    path = Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION
    if not path.is_file():
        raise UserError(
            f"FID needs the weights of the Inception network: put {INCEPTION_FROM}{INCEPTION} at "
            f"{path}, or name another network with --set features=..., such as the folder of a "
            "run on cifar10"
        )
    return path


def inception() -> nn.Module:
    path = inception_path()
    with open_regular(path, limit=LARGEST) as file:
        content = file.read()
    if hashlib.sha256(content).hexdigest() != INCEPTION_SHA256:
        raise UserError(f"{path} is damaged: replace it by {INCEPTION_FROM}{INCEPTION}")
    # torch-fidelity unpickles whatever the file has become meanwhile: it gets the checked weights,
    # which are read as tensors only and written again.
    checked = io.BytesIO()
    torch.save(torch.load(io.BytesIO(content), weights_only=True), checked)
    checked.seek(0)
    network: nn.Module = NoTrainInceptionV3("inception-v3-compat", ["2048"], checked)  # type: ignore[arg-type]
    return network


# --- a network from a run -------------------------------------------------------------------------


def from_run(folder: Path) -> nn.Module:
    """The inputs of the last layer of a trained network."""
    config = read_config(folder)
    task = config.task_definition
    facts = data.find(task.dataset)
    if task.kind != "classify" or not isinstance(facts, ArrayDataset) or facts.shape[0] != 3:
        raise UserError(
            f"features={folder} is a run of {config.task}: it has to be one on colour images with "
            "classes, such as cifar10"
        )
    path = folder / "last.pt"
    if not path.exists():
        raise UserError(f"features={folder} has no last.pt, which has the weights of the run")
    network = models.build_classifier(config.model, classes=facts.classes, shape=facts.shape)
    try:
        network.load_state_dict(read_checkpoint(path, torch.device("cpu"))["model"])
    except DamagedCheckpoint as error:
        raise UserError(f"{path} is damaged ({error}): name another run") from None
    except (RuntimeError, LookupError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} does not fit {config.model}: {reason}") from None
    return Penultimate(network, facts.shape[1:], facts.mean, facts.std)


class Penultimate(nn.Module):
    """Resizes and normalises bytes as in the run's training; the network without its last layer."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        size: tuple[int, int],
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.network, self.size = without_last_layer(network).eval(), size
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        pixels = F.interpolate(images.float() / 255, self.size, mode="bilinear", antialias=True)
        features: Tensor = self.network((pixels - self.mean) / self.std)
        return features


def without_last_layer(network: nn.Module) -> nn.Module:
    name = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    return network


# --- a user's own ---------------------------------------------------------------------------------


def by_path(name: str) -> nn.Module:
    target = plugins.load_object("network of features", name, "put its folder on PYTHONPATH")
    try:
        network = target if isinstance(target, nn.Module) else target()
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise UserError(f"features={name} cannot be called: {reason_of(error)}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"features={name} is a {type(network).__name__}, not a torch.nn.Module")
    return network.eval()

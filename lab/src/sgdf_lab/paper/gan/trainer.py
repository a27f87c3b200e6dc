"""WGAN-GP: a generator of images against a critic whose gradient norm is held near 1.

The critic takes every step, the generator every fifth. Both have an optimizer of the same name and
settings. All random numbers of an epoch are drawn before it begins, as with the other tasks, so
they are the same for every optimizer, on every device and in every process of a team.
"""

import functools
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import make_grid

from sgdf_lab import tasks
from sgdf_lab.data import Dataset
from sgdf_lab.paper.gan import fid
from sgdf_lab.paper.gan.dcgan import DCGAN, MODELS, Z
from sgdf_lab.paper.gan.fid import Distance, parts
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks.classify import load_dataset
from sgdf_lab.training.batches import micro_batch_sizes, seed_for
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.images import ResidentBatches
from sgdf_lab.training.loop import Trainer

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

PENALTY = 10.0
GENERATOR_EVERY = 5  # steps of the critic
MAX_FID_SAMPLES = 1_000_000  # just their noise takes 400 MB
GRID = 8  # rows and columns of samples in a picture


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if data or feature network are missing, or an option is wrong."""
    tasks.check_integers(config, fid_samples=2, fid_every=0)
    if config.option("fid_samples") > MAX_FID_SAMPLES:
        raise UserError(
            f"fid_samples is at most {MAX_FID_SAMPLES:,}, not {config.option('fid_samples'):,}: "
            "more images take too much memory and time"
        )
    if config.validation:
        raise UserError(f"{config.task} holds out no images: leave validation out")
    fid.check(config.option("features"))
    load_dataset(config.task, data_dir, config.data == "synthetic")


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,  # has no effect: the penalty is differentiated twice
    team: Team = SINGLE_PROCESS,
) -> Trainer:
    check(config, data_dir)
    if team.shards:
        raise UserError(f"{config.task} has networks too small to shard: leave --shard out")
    with tasks.weights_by_seed(config):
        model = MODELS[config.model](config.option("critic_norm"))
    distance = distance_for(
        config.option("features"), config.task, data_dir, config.data, model.size, device, team
    )
    dataset = load_dataset(config.task, data_dir, config.data == "synthetic")
    batches = GanBatches(dataset, device, seed=config.seed, size=model.size)
    model = tasks.channels_last(model, device)
    return Gan(config, model, batches, distance, device, team=team)


@functools.lru_cache(maxsize=1)  # the real images are the same for all runs
def distance_for(
    network: str, task: str, data_dir: Path | None, data: str, size: int,
    device: torch.device, team: Team,
) -> Distance:  # fmt: skip
    """FID from the training images at the size that the critic sees."""
    images = load_dataset(task, data_dir, data == "synthetic").train.images
    real = (
        as_bytes(resized(images[part].to(device), size)) for part in parts(*team.share(len(images)))
    )
    return Distance(fid.load(network, device), network, real, team)


def resized(pixels: Tensor, size: int) -> Tensor:
    """Bytes as numbers between -1 and 1, at the size of the networks."""
    return F.interpolate(pixels.float(), (size, size), mode="bilinear") / 127.5 - 1


def as_bytes(images: Tensor) -> Tensor:
    return ((images + 1) * 127.5).round().clamp(0, 255).byte()


def normal(purpose: str, seed: int, count: int) -> Tensor:
    """The generator's inputs for `count` images; the same on all devices."""
    random = np.random.default_rng(seed_for(purpose, seed))
    return torch.from_numpy(random.standard_normal((count, Z), dtype=np.float32))


class GanBatches(ResidentBatches):
    """Real images in the epoch's order, each with its noise.

    The noise is the input for one generated image, and the weight of the real image in a mix of
    the two.
    """

    def __init__(self, dataset: Dataset, device: torch.device, *, seed: int, size: int) -> None:
        super().__init__(dataset.train, dataset, device, seed=seed, augmented=False)
        self.size = size
        self.noise = torch.zeros(len(self), Z + 1, device=device)
        self.drawn_noise = torch.zeros(0)

    def draw(self, epoch: int) -> None:
        super().draw(epoch)
        random = np.random.default_rng(seed_for("noise", self.seed, epoch))
        noise = random.standard_normal((len(self), Z + 1), dtype=np.float32)
        noise[:, Z] = random.random(len(self), dtype=np.float32)
        self.drawn_noise = torch.from_numpy(noise)

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self.noise.copy_(self.drawn_noise)

    def take(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The `size` real images from `position` on in the epoch's order, and their noise."""
        where = position + torch.arange(size, device=position.device)
        pixels = self.images.pixels[self.plan[0, where].long()].permute(0, 3, 1, 2)
        return resized(pixels, self.size), self.noise[where]

    def take_z(self, position: Tensor, size: int) -> Tensor:
        return self.noise[position + torch.arange(size, device=position.device), :Z]


class Gan(Trainer):
    """The critic takes the steps of the loop; every fifth has one of the generator as its extra."""

    model: DCGAN
    batches: GanBatches

    def __init__(
        self, config: "Config", model: DCGAN, batches: GanBatches, distance: Distance,
        device: torch.device, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(config, model, batches, device, compile=False, **more)
        self.distance = distance
        self.generator_params = list(model.generator.parameters())
        self.totals = {
            name: torch.zeros((), device=device, dtype=torch.float64)
            for name in ("wasserstein", "gradient_penalty", "generator_loss")
        }

    def _trained_parameters(self) -> dict[str, list[nn.Parameter]]:
        return {
            "optimizer": list(self.model.critic.parameters()),
            "generator_optimizer": list(self.model.generator.parameters()),
        }

    def epoch(self) -> Iterator[None]:
        with self._turn():
            for total in self.totals.values():
                total.zero_()
        yield from super().epoch()

    # --- the critic -------------------------------------------------------------------------------

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        real, noise = self.batches.take(position, size)
        fake = self._generate(noise[:, :Z])
        penalty = self._penalty(real, fake, noise[:, Z])
        wasserstein = self._scores(real).sum() - self._scores(fake).sum()
        self.totals["wasserstein"] += wasserstein.detach()
        self.totals["gradient_penalty"] += penalty.detach()
        return PENALTY * penalty - wasserstein, torch.zeros_like(self.sums.correct)

    @torch.no_grad()
    def _generate(self, z: Tensor) -> Tensor:
        with self._autocast():
            images: Tensor = self.model.generator(z)
        return images.float()

    def _scores(self, images: Tensor) -> Tensor:
        with self._autocast():
            scores: Tensor = self.model.critic(images)
        return scores.float()

    def _penalty(self, real: Tensor, fake: Tensor, weight: Tensor) -> Tensor:
        """Sum over images of (gradient norm - 1)^2, between real and generated images."""
        mixed = torch.lerp(fake, real, weight[:, None, None, None]).requires_grad_()
        (gradient,) = torch.autograd.grad(self._scores(mixed).sum(), mixed, create_graph=True)
        return (gradient.flatten(1).norm(dim=1) - 1).square().sum()

    # --- the generator ----------------------------------------------------------------------------

    def _extra_every(self) -> int:
        super()._extra_every()
        return GENERATOR_EVERY

    def _extra_step(self, size: int) -> None:
        """A step of the generator, from the noise of the critic's step."""
        if self.graphs is None or self.captures_step:
            grads = self._generator_gradients(size)
        else:
            key = ("generator", size)
            grads = self.graphs.run(key, lambda: self._generator_gradients(size))
            for p, grad in zip(self.generator_params, grads, strict=True):
                p.grad = grad
        self.team.sum_(grads)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.generator_params, self.config.clip)
        self.optimizers["generator_optimizer"].step()

    def _generator_gradients(self, size: int) -> list[Tensor]:
        for p in self.generator_params:
            p.grad = torch.zeros_like(p)
        start, share = self.team.share(size)
        position = self.batches.position - size + start
        for count in micro_batch_sizes(share, self.config.accumulate):
            with self._autocast():
                images = self.model.generator(self.batches.take_z(position, count))
            loss = -self._scores(images).sum()
            (loss / size).backward(inputs=self.generator_params)
            self.totals["generator_loss"] += loss.detach()
            position = position + count
        return [p.grad for p in self.generator_params if p.grad is not None]

    # --- the results of an epoch ------------------------------------------------------------------

    def _evaluate(self) -> dict[str, tuple[Tensor, float]]:
        first = self.steps_done - len(self.sizes)
        generated = sum(s for i, s in enumerate(self.sizes) if self._has_extra(first + i))
        counts = dict.fromkeys(self.totals, sum(self.sizes)) | {"generator_loss": generated}
        return {name: (self.totals[name], float(n)) for name, n in counts.items() if n}

    def metrics(self) -> dict[str, Any]:
        """What was not measured is None: FID in most epochs, since it takes long."""
        result = {**super().metrics()}
        result.setdefault("generator_loss", None)  # an epoch may have no step of it
        every = self.config.option("fid_every")
        due = self.steps_done == self.total or (every and self.evaluations % every == 0)
        result["fid"] = None
        if due and math.isfinite(result["train_loss"]):
            with self._turn():
                result["fid"] = self.distance.to(self._samples())
        return result

    def _samples(self) -> Iterator[Tensor]:
        """This process's share of the generated images that FID is measured on."""
        count = self.config.option("fid_samples")
        z = normal("fid", self.config.seed, count)
        for part in parts(*self.team.share(count)):
            yield self._sample(z[part])

    def _sample(self, z: Tensor) -> Tensor:
        self.model.eval()
        images = as_bytes(self._generate(z.to(self.device)))
        self.model.train()
        return images

    def pictures(self) -> dict[str, bytes]:
        """Samples from the same noise after every epoch."""
        with self._turn():
            images = self._sample(normal("pictures", self.config.seed, GRID * GRID))
            return {f"epoch-{self.evaluations:04d}.png": as_png(images)}


def as_png(images: Tensor) -> bytes:
    """GRID x GRID images in one picture."""
    file = io.BytesIO()
    to_pil_image(make_grid(images.cpu(), GRID, padding=0)).save(file, "PNG")
    return file.getvalue()

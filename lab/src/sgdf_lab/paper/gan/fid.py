"""The Fréchet distance between real and generated images, by the features of a network."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numerics import full_precision
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
            with full_precision(images.device):
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

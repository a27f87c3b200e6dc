"""Images that stay on the device as bytes; the seed decides their order, crops and flips."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgdf_lab.data import Dataset, Split
from sgdf_lab.support.errors import UserError
from sgdf_lab.training.batches import PlannedBatches, digest_of, seed_for

PADDING = 4
EVALUATION_BATCH = 1000
LARGE_EVALUATION_BATCH = 200  # of images with ten times the side


def hold_out(split: Split, count: int) -> tuple[Split, Split]:
    """The images to train on, and `count` held out for validation: always the same ones."""
    kept, held = hold_out_indices(len(split.labels), count)
    return (
        Split(split.images[kept], split.labels[kept]),
        Split(split.images[held], split.labels[held]),
    )


def hold_out_indices(images: int, count: int) -> tuple[Tensor, Tensor]:
    """Indices of the images that are kept, and of those that are held out."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    return order[count:].sort().values, order[:count].sort().values


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes N x H x W x C as numbers N x C x H x W, channels last in memory for convolutions."""
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def reflected(size: int, padding: int) -> Tensor:
    """Indices of a line of pixels and of its mirror images at both ends.

    >>> reflected(4, 2).tolist()
    [2, 1, 0, 1, 2, 3, 2, 1]
    """
    if padding >= size:
        raise UserError(f"images of {size} pixels cannot move by {padding}")
    return torch.from_numpy(np.pad(np.arange(size), padding, mode="reflect"))


class ResidentImages:
    """Images on the device as bytes; normalised, and resized to `enlarged` pixels, when taken."""

    def __init__(
        self,
        split: Split,
        dataset: Dataset,
        device: torch.device,
        padding: int = 0,
        enlarged: int | None = None,
        reflect: bool = False,
    ) -> None:
        self.size = split.images.shape[-1]
        self.enlarged = enlarged
        pixels = split.images.permute(0, 2, 3, 1)
        if padding and reflect:
            inside = reflected(self.size, padding)
            pixels = pixels[:, inside][:, :, inside]
        elif padding:  # zeros, around raw pixels
            pixels = torch.nn.functional.pad(pixels, (0, 0, padding, padding, padding, padding))
        self.pixels = pixels.contiguous().to(device)
        self.labels = split.labels.to(device)
        self.mean = torch.tensor(dataset.mean, device=device)
        self.std = torch.tensor(dataset.std, device=device)
        self.span = torch.arange(self.size, device=device)

    def __len__(self) -> int:
        return len(self.labels)

    def normalised(self, pixels: Tensor) -> Tensor:
        images = normalised(pixels, self.mean, self.std)
        if self.enlarged is None:
            return images
        side = self.enlarged, self.enlarged
        return torch.nn.functional.interpolate(images, side, mode="bilinear")

    def batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The `count` images from `first` on, normalised, and their labels, in batches."""
        most = LARGE_EVALUATION_BATCH if self.enlarged else EVALUATION_BATCH
        for start in range(first, first + count, most):
            part = slice(start, min(start + most, first + count))
            yield self.normalised(self.pixels[part]), self.labels[part]

    def cropped(self, index: Tensor, y: Tensor, x: Tensor, flip: Tensor) -> Tensor:
        """The images `index`, cropped at (y, x), mirrored where `flip`."""
        rows = y[:, None] + self.span
        columns = x[:, None] + torch.where(flip[:, None], self.size - 1 - self.span, self.span)
        return self.pixels[index[:, None, None], rows[:, :, None], columns[:, None, :]]


class ResidentBatches(PlannedBatches):
    """Training images in the epoch's order; `augmented` ones are cropped and flipped.

    Without `padding` there is nothing to crop, and they are only flipped. It is of zeros, or with
    `reflect` of mirrored pixels.
    """

    def __init__(
        self,
        split: Split,
        dataset: Dataset,
        device: torch.device,
        *,
        seed: int,
        augmented: bool,
        padding: int = PADDING,
        enlarged: int | None = None,
        reflect: bool = False,
    ) -> None:
        self.augmented = augmented
        self.padding = padding if augmented else 0
        self.images = ResidentImages(split, dataset, device, self.padding, enlarged, reflect)
        self.seed = seed
        # Rows: order, y, x, flip. A column for each image.
        super().__init__(torch.zeros(4, len(self.images), dtype=torch.int32, device=device))

    def __len__(self) -> int:
        return len(self.images)

    def fingerprint(self) -> str:
        return digest_of(*(t.cpu().numpy() for t in (self.images.pixels, self.images.labels)))

    def drawn_plan(self, epoch: int) -> NDArray[np.int32]:
        random = np.random.default_rng(seed_for("data", self.seed, epoch))
        n = len(self.images)
        plan = np.zeros((4, n), dtype=np.int32)
        plan[0] = random.permutation(n)
        if self.augmented:
            plan[1:3] = random.integers(0, 2 * self.padding + 1, (2, n))
            plan[3] = random.integers(0, 2, n)
        return plan

    def take(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The `size` images from `position` on in the epoch's order, and their labels."""
        where = position + torch.arange(size, device=position.device)
        index, y, x, flip = self.plan[:, where].long()
        if self.augmented:
            pixels = self.images.cropped(index, y, x, flip.bool())
        else:
            pixels = self.images.pixels[index]
        return self.images.normalised(pixels), self.images.labels[index]


class SteppedBatches(ResidentBatches):
    """Images for a run that is as long as a number of steps, whatever the size of the data.

    A pass over the images has full batches only: what is left of its order is dropped. An image
    that is mirrored in one pass is not mirrored in the next.

    Args:
        split, dataset, device: the training images.
        seed: decides order, shifts and the first flips.
        steps: between two evaluations.
        batch: images in a step.
        shift: pixels by which an image moves at most; its edge is reflected.
    """

    def __init__(
        self,
        split: Split,
        dataset: Dataset,
        device: torch.device,
        *,
        seed: int,
        steps: int,
        batch: int,
        shift: int,
    ) -> None:
        super().__init__(
            split, dataset, device, seed=seed, augmented=True, padding=shift, reflect=True
        )
        self.steps, self.batch = steps, batch
        self.steps_per_pass = len(self.images) // batch
        if not self.steps_per_pass:
            raise UserError(f"a batch of {batch} is larger than the {len(self.images)} images")
        self.plan = torch.zeros(4, steps * batch, dtype=torch.int32, device=device)

    def __len__(self) -> int:
        """Images between two evaluations, which the loop takes for an epoch."""
        return self.steps * self.batch

    def drawn_plan(self, epoch: int) -> NDArray[np.int32]:
        first = epoch * self.steps
        per_pass = self.steps_per_pass
        last = (first + self.steps - 1) // per_pass
        passes = {n: self._pass(n) for n in range(first // per_pass, last + 1)}
        drawn = []
        for step in range(first, first + self.steps):
            number, place = divmod(step, per_pass)
            drawn.append(passes[number][:, place * self.batch : (place + 1) * self.batch])
        return np.concatenate(drawn, axis=1)

    def _pass(self, number: int) -> NDArray[np.int32]:
        """Order, shifts and flips of a pass over all images."""
        random = np.random.default_rng(seed_for("data", self.seed, number))
        n = len(self.images)
        plan = np.zeros((4, n), dtype=np.int32)
        plan[0] = random.permutation(n)
        plan[1:3] = random.integers(0, 2 * self.padding + 1, (2, n))
        in_the_first = np.random.default_rng(seed_for("flips", self.seed)).integers(0, 2, n)
        plan[3] = (in_the_first ^ (number % 2))[plan[0]]
        return plan

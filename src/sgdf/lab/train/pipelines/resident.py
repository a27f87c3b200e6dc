"""Batches from data that stays on the device as bytes, in an order that the seed decides.

Order, crops and flips of an epoch are drawn on the CPU from (seed, epoch) alone. They are the same
for every optimizer, on every device and after any interruption, and a CUDA graph finds them in
tensors that are filled before the epoch begins.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sgdf.lab.data import Dataset, Split

PADDING = 4
EVALUATION_BATCH = 1000
LARGE_EVALUATION_BATCH = 200  # of images with ten times the side


def seed_for(purpose: str, seed: int, epoch: int = 0) -> int:
    """Independent seeds for the purposes that need one."""
    words = [seed, epoch, *purpose.encode()]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def hold_out(split: Split, count: int) -> tuple[Split, Split]:
    """What is left to train on, and `count` images to choose by: always the same ones."""
    kept, held = held_out(len(split.labels), count)
    return (
        Split(split.images[kept], split.labels[kept]),
        Split(split.images[held], split.labels[held]),
    )


def held_out(images: int, count: int) -> tuple[Tensor, Tensor]:
    """The numbers of those that are kept, and of those that are held out."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    return order[count:].sort().values, order[:count].sort().values


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Channels last in memory, which is how convolutions are fastest."""
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)


class Images:
    """Images on the device, as bytes, pixel by pixel; normalised when they are taken out.

    They may also be `enlarged` then, to so many pixels a side.
    """

    def __init__(
        self,
        split: Split,
        dataset: Dataset,
        device: torch.device,
        padding: int = 0,
        enlarged: int | None = None,
    ) -> None:
        self.size = split.images.shape[-1]
        self.enlarged = enlarged
        pixels = split.images.permute(0, 2, 3, 1)
        if padding:  # zeros, around raw pixels
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
        """The `count` images from `first` on, normalised, and their labels, in pieces."""
        most = LARGE_EVALUATION_BATCH if self.enlarged else EVALUATION_BATCH
        for start in range(first, first + count, most):
            part = slice(start, min(start + most, first + count))
            yield self.normalised(self.pixels[part]), self.labels[part]

    def cropped(self, index: Tensor, y: Tensor, x: Tensor, flip: Tensor) -> Tensor:
        """The images `index`, cut out at (y, x), mirrored where `flip`."""
        rows = y[:, None] + self.span
        columns = x[:, None] + torch.where(flip[:, None], self.size - 1 - self.span, self.span)
        return self.pixels[index[:, None, None], rows[:, :, None], columns[:, None, :]]


class Epochs:
    """The training images in this epoch's order, cropped and flipped if `augmented`.

    Without `padding` there is nothing to crop, and they are flipped alone.
    """

    resident = True

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
    ) -> None:
        self.augmented = augmented
        self.padding = padding if augmented else 0
        self.images = Images(split, dataset, device, self.padding, enlarged)
        self.seed = seed
        # order, y, x, flip: a column an image
        self.plan = torch.zeros(4, len(self.images), dtype=torch.int32, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.drawn: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, epoch: int) -> None:
        """Decide on an epoch's order and augmentation ahead of it, while a GPU has work to do."""
        random = np.random.default_rng(seed_for("data", self.seed, epoch))
        n = len(self.images)
        plan = np.zeros((4, n), dtype=np.int32)
        plan[0] = random.permutation(n)
        if self.augmented:
            plan[1:3] = random.integers(0, 2 * self.padding + 1, (2, n))
            plan[3] = random.integers(0, 2, n)
        self.drawn = epoch, torch.from_numpy(plan)

    def begin(self, epoch: int) -> None:
        """Have `take` follow the epoch's plan, from its first image on."""
        if self.drawn is None or self.drawn[0] != epoch:
            self.draw(epoch)
        assert self.drawn is not None
        self.plan.copy_(self.drawn[1])
        self.position.zero_()

    def take(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The `size` images from `position` on in the epoch's order, and their labels."""
        where = position + torch.arange(size, device=position.device)
        index, y, x, flip = self.plan[:, where].long()
        if self.augmented:
            pixels = self.images.cropped(index, y, x, flip.bool())
        else:
            pixels = self.images.pixels[index]
        return self.images.normalised(pixels), self.images.labels[index]

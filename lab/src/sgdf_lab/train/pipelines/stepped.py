"""Resident images for a run that is as long as a number of steps, not of epochs.

A pass over the images has full batches only: what is left of its order is dropped. An image that
is mirrored in one pass is not mirrored in the next.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from sgdf_lab.data import Dataset, Split
from sgdf_lab.support.errors import UserError
from sgdf_lab.train.batches import seed_for
from sgdf_lab.train.pipelines.resident import ResidentBatches


class SteppedBatches(ResidentBatches):
    """The images of `steps` steps: what the loop takes for an epoch.

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

    def draw(self, epoch: int) -> None:
        first = epoch * self.steps
        per_pass = self.steps_per_pass
        last = (first + self.steps - 1) // per_pass
        passes = {n: self._pass(n) for n in range(first // per_pass, last + 1)}
        drawn = []
        for step in range(first, first + self.steps):
            number, place = divmod(step, per_pass)
            drawn.append(passes[number][:, place * self.batch : (place + 1) * self.batch])
        self.drawn = epoch, torch.from_numpy(np.concatenate(drawn, axis=1))

    def _pass(self, number: int) -> NDArray[np.int32]:
        """Order, shifts and flips of a pass over all images."""
        random = np.random.default_rng(seed_for("data", self.seed, number))
        n = len(self.images)
        plan = np.zeros((4, n), dtype=np.int32)
        plan[0] = random.permutation(n)
        plan[1:3] = random.integers(0, 2 * self.padding + 1, (2, n))
        plan[3] = (self._first_flips() ^ (number % 2))[plan[0]]
        return plan

    def _first_flips(self) -> NDArray[np.int64]:
        """Of every image, whether it is mirrored in the first pass."""
        random = np.random.default_rng(seed_for("flips", self.seed))
        return random.integers(0, 2, len(self.images))

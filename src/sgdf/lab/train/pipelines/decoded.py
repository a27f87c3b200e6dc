"""Batches of images that are decoded from files while the device works on the batch before.

An epoch's order depends on (seed, epoch), and what is done to an image on (seed, epoch, image), so
that neither the number of processes that decode nor an interruption changes a number.
"""

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sgdf.lab.data.image_folders import ImageFiles
from sgdf.lab.runs.config import Config
from sgdf.lab.train.distributed import Team
from sgdf.lab.train.loop import batch_sizes, piece_sizes
from sgdf.lab.train.pipelines.resident import LARGE_EVALUATION_BATCH, normalised, seed_for
from sgdf.support.errors import UserError

FEW = 500  # images that are decoded before processes to do it have started
MOST_WORKERS = 16
Change = Callable[[Image.Image], Image.Image]  # of a picture, to one of the size of all
Piece = tuple[int, NDArray[np.int64]]  # an epoch, and images to decode for it


class Pictures(Dataset[tuple[Tensor, Tensor] | UserError]):
    """Whole pieces of batches, decoded: bytes and labels."""

    def __init__(self, files: ImageFiles, change: Change, seed: int) -> None:
        self.files, self.change, self.seed = files, change, seed

    def __getitem__(self, piece: Piece) -> tuple[Tensor, Tensor] | UserError:
        """An error is a value: raised in another process it would arrive with a traceback."""
        epoch, images = piece
        try:
            pixels = [self.picture(epoch, int(index)) for index in images]
        except UserError as error:
            return error
        return torch.from_numpy(np.stack(pixels)), torch.from_numpy(self.files.labels[images])

    def picture(self, epoch: int, index: int) -> NDArray[np.uint8]:
        path = self.files.path(index)
        with torch.random.fork_rng(devices=[]):
            # torchvision draws from torch's generator; torch.manual_seed would reach the GPU's.
            seed = seed_for(f"image{index}", self.seed, epoch)
            torch.default_generator.manual_seed(seed)
            return np.asarray(self.change(decoded(path)))


def decoded(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        why = str(error).replace(f"'{path}'", "it")
        raise UserError(f"{path} is not a whole image ({why}): put it there again") from None


class Stream:
    """The training images in this epoch's order: of every batch the share of this process."""

    resident = False

    def __init__(
        self, files: ImageFiles, change: Change, look: "Look", config: Config, team: Team
    ) -> None:
        self.files, self.look, self.config, self.team = files, look, config, team
        self.pictures = Pictures(files, change, config.seed)
        self.position = torch.zeros((), dtype=torch.int64)  # on the host, which has to know it
        self.ahead: tuple[int, Pieces] | None = None
        self.pieces: Pieces | None = None
        self.recent: list[tuple[int, Tensor, Tensor]] = []  # of this batch: from where on, what

    def __len__(self) -> int:
        return len(self.files)

    def draw(self, epoch: int) -> None:
        """Start decoding: the first batches are ready when the judging of this epoch is done."""
        self.close()
        if epoch < self.config.epochs:
            self.ahead = epoch, Pieces(self.pictures, self.plan(epoch), self.look.device)

    def close(self) -> None:
        """Stop the processes that decode."""
        for pieces in (self.pieces, self.ahead and self.ahead[1]):
            if pieces:
                pieces.close()
        self.pieces = self.ahead = None

    def plan(self, epoch: int) -> list[Piece]:
        random = np.random.default_rng(seed_for("data", self.config.seed, epoch))
        order = random.permutation(len(self))
        plan, first = [], 0
        for size in batch_sizes(len(self), self.config.batch):
            start, mine = self.team.share(size)
            at = first + start
            for piece in piece_sizes(mine, self.config.accumulate):
                plan.append((epoch, order[at : at + piece]))
                at += piece
            first += size
        return plan

    def begin(self, epoch: int) -> None:
        if self.ahead is None or self.ahead[0] != epoch:
            self.draw(epoch)
        assert self.ahead is not None
        self.pieces, self.ahead = self.ahead[1], None
        self.position.zero_()
        self.recent = []

    def take(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        pixels, labels = self.bytes_of(position, size)
        return self.look.of(pixels), labels

    @torch.compiler.disable
    def bytes_of(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The next piece, or once more what the batch before `position` was made of."""
        first = int(position)
        if self.recent and first <= self.recent[-1][0]:
            return self.again(first, size)
        if self.recent and first // self.config.batch > self.recent[-1][0] // self.config.batch:
            self.recent = []
        assert self.pieces
        pixels, labels = self.pieces.next()
        assert len(labels) == size
        self.recent.append((first, pixels, labels))
        return pixels, labels

    def again(self, first: int, size: int) -> tuple[Tensor, Tensor]:
        start = first - self.recent[0][0]
        pixels = torch.cat([pixels for _, pixels, _ in self.recent])
        labels = torch.cat([labels for _, _, labels in self.recent])
        return pixels[start : start + size], labels[start : start + size]


class Streamed:
    """Images to judge by: nothing is drawn for them."""

    def __init__(self, files: ImageFiles, change: Change, look: "Look") -> None:
        self.pictures, self.look = Pictures(files, change, 0), look

    def __len__(self) -> int:
        return len(self.pictures.files)

    def batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        mine = np.arange(first, first + count)
        cuts = range(LARGE_EVALUATION_BATCH, count, LARGE_EVALUATION_BATCH)
        plan = [(0, piece) for piece in np.split(mine, cuts) if len(piece)]
        pieces = Pieces(self.pictures, plan, self.look.device)
        try:
            for _ in plan:
                pixels, labels = pieces.next()
                yield self.look.of(pixels), labels
        finally:
            pieces.close()


class Look:
    """How a network sees bytes: normalised, on its device."""

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> None:
        self.device = device
        self.mean, self.std = (torch.tensor(v, device=device) for v in (mean, std))

    def of(self, pixels: Tensor) -> Tensor:
        return normalised(pixels, self.mean, self.std)


# --- processes that decode ----------------------------------------------------------------------


class Pieces:
    """The pieces of a plan, decoded one after another by other processes.

    These stop at `close`. Left to the garbage collector, which may take the queue to them away
    first, they would keep it waiting for five seconds each.
    """

    def __init__(self, pictures: Pictures, plan: list[Piece], device: torch.device) -> None:
        self.device = device
        self.source: Iterator[Any] | None = iter(loader(pictures, plan, device))

    def close(self) -> None:
        self.source = None

    def next(self) -> tuple[Tensor, Tensor]:
        """Decoded, and on its way to the device."""
        piece = self.received()
        if isinstance(piece, UserError):
            self.close()
            raise piece
        pixels, labels = (part.to(self.device, non_blocking=True) for part in piece)
        return pixels, labels

    def received(self) -> Any:
        assert self.source
        try:
            return next(self.source)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            why = str(error).partition("\n")[0]
        return UserError(  # outside of the handler, so that no traceback holds on to the source
            f"a process that decodes images died ({why}): with little memory, or a small "
            "/dev/shm, set SGDF_WORKERS to a lower number"
        )


def loader(pictures: Pictures, plan: list[Piece], device: torch.device) -> DataLoader[Any]:
    workers = min(workers_for(sum(len(images) for _, images in plan)), len(plan))
    return DataLoader(
        pictures,
        batch_size=None,  # a piece is a batch already
        sampler=plan,  # type: ignore[arg-type]  # a list does
        num_workers=workers,
        worker_init_fn=at_work if workers else None,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # not the one that dropout draws from
    )


def workers_for(images: int) -> int:
    """Processes: $SGDF_WORKERS, or as many as there are cores for this process of a team."""
    said = os.environ.get("SGDF_WORKERS")
    if said is not None:
        if not said.isdigit():
            raise UserError(f"SGDF_WORKERS is a whole number from 0 on, not {said!r}")
        return int(said)
    if images < FEW:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min((cores or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), MOST_WORKERS))


def at_work(worker: int) -> None:
    """Ctrl-C is for the process that trains; what Pillow thinks of metadata is of no use."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.filterwarnings("ignore", module="PIL")

"""Images that processes decode from files while the device works on the batch before.

An epoch's order depends on (seed, epoch), and the augmentation of an image on (seed, epoch, image),
so neither the number of processes nor an interruption changes a number.
"""

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sgdf_lab.data.class_folders import ImageFiles
from sgdf_lab.support.errors import UserError, message_of
from sgdf_lab.support.files import open_regular
from sgdf_lab.training.batches import batch_sizes, digest_of, micro_batch_sizes, seed_for
from sgdf_lab.training.distributed import Team
from sgdf_lab.training.images import LARGE_EVALUATION_BATCH, normalised

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

FEW_IMAGES = 500  # are decoded before processes to do it would have started
MOST_WORKERS = 16
# Pillow knows many more, and starts Ghostscript for one: a stranger's image must run no program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP")
Transform = Callable[[Image.Image], Image.Image]  # to an image of the size that all have
MicroBatch = tuple[int, NDArray[np.int64]]  # an epoch, and the indices of images to decode for it


class MicroBatchDecoder(Dataset[tuple[Tensor, Tensor] | UserError]):
    """Decodes one micro-batch at a time: pixels as bytes, and labels."""

    def __init__(self, files: ImageFiles, transform: Transform, seed: int) -> None:
        self.files, self.transform, self.seed = files, transform, seed

    def __getitem__(self, micro_batch: MicroBatch) -> tuple[Tensor, Tensor] | UserError:
        """Errors are returned: raised in another process one would arrive with a traceback."""
        epoch, images = micro_batch
        try:
            pixels = [self.image(epoch, int(index)) for index in images]
        except UserError as error:
            return error
        return torch.from_numpy(np.stack(pixels)), torch.from_numpy(self.files.labels[images])

    def image(self, epoch: int, index: int) -> NDArray[np.uint8]:
        path = self.files.path(index)
        with torch.random.fork_rng(devices=[]):
            # torchvision draws from torch's generator; torch.manual_seed would seed the GPU's too.
            seed = seed_for(f"image{index}", self.seed, epoch)
            torch.default_generator.manual_seed(seed)
            return np.asarray(self.transform(decode(path)))


def decode(path: Path) -> Image.Image:
    """An image of one of `FORMATS`, whatever its name ends in."""
    try:
        with open_regular(path) as file, Image.open(file, formats=FORMATS) as image:
            return in_bytes(image, path).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        is_other = isinstance(error, UnidentifiedImageError)
        why = f"it is none of {', '.join(FORMATS)}" if is_other else message_of(error)
        raise UserError(f"{path} is not a complete image ({why}): replace the file") from None


def in_bytes(image: Image.Image, path: Path) -> Image.Image:
    """Grey of 16 bits in 8: Pillow would make all but the darkest 255 of its levels white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UserError(
            f"{path} has pixels of 32 bits, whose black and white are not known: convert it to 8"
        )
    return image


class Normalisation:
    """Bytes on the device as the numbers that a network takes."""

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> None:
        self.device = device
        self.mean, self.std = (torch.tensor(v, device=device) for v in (mean, std))

    def __call__(self, pixels: Tensor) -> Tensor:
        return normalised(pixels, self.mean, self.std)


class DecodedBatches:
    """Training images in the epoch's order: of every batch, the share of this process."""

    resident = False

    def __init__(
        self,
        files: ImageFiles,
        transform: Transform,
        normalisation: Normalisation,
        config: "Config",
        team: Team,
    ) -> None:
        self.files, self.normalisation = files, normalisation
        self.config, self.team = config, team
        self.decoder = MicroBatchDecoder(files, transform, config.seed)
        self.position = torch.zeros((), dtype=torch.int64)  # on the host, which has to know it
        self.ahead: tuple[int, DecodingQueue] | None = None  # the next epoch, and its queue
        self.queue: DecodingQueue | None = None
        self.recent: list[tuple[int, Tensor, Tensor]] = []  # of this batch, by position

    def __len__(self) -> int:
        return len(self.files)

    def fingerprint(self) -> str:
        """A hash of names and labels: the files are too many to read."""
        return digest_of(self.files.names, self.files.labels)

    def draw(self, epoch: int) -> None:
        """Start to decode: the first batches are ready when this epoch has been evaluated."""
        self.close()
        if epoch < self.config.epochs:
            plan = self.plan(epoch)
            self.ahead = epoch, DecodingQueue(self.decoder, plan, self.normalisation.device)

    def close(self) -> None:
        """Stop the decoding processes."""
        for queue in (self.queue, self.ahead and self.ahead[1]):
            if queue:
                queue.close()
        self.queue = self.ahead = None

    def plan(self, epoch: int) -> list[MicroBatch]:
        """This process's micro-batches of an epoch, in the order in which the loop takes them."""
        random = np.random.default_rng(seed_for("data", self.config.seed, epoch))
        order = random.permutation(len(self))
        plan, first = [], 0
        for size in batch_sizes(len(self), self.config.batch):
            start, share = self.team.share(size)
            at = first + start
            for count in micro_batch_sizes(share, self.config.accumulate):
                plan.append((epoch, order[at : at + count]))
                at += count
            first += size
        return plan

    def begin(self, epoch: int) -> None:
        if self.ahead is None or self.ahead[0] != epoch:
            self.draw(epoch)
        assert self.ahead is not None
        self.queue, self.ahead = self.ahead[1], None
        self.position.zero_()
        self.recent = []

    def take(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        pixels, labels = self.take_bytes(position, size)
        return self.normalisation(pixels), labels

    @torch.compiler.disable
    def take_bytes(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The next micro-batch, or images of this batch again if `position` lies within it."""
        first = int(position)
        if self.recent and first <= self.recent[-1][0]:
            return self.take_again(first, size)
        if self.recent and first // self.config.batch > self.recent[-1][0] // self.config.batch:
            self.recent = []
        assert self.queue
        pixels, labels = self.queue.next()
        assert len(labels) == size
        self.recent.append((first, pixels, labels))
        return pixels, labels

    def take_again(self, first: int, size: int) -> tuple[Tensor, Tensor]:
        start = first - self.recent[0][0]
        pixels = torch.cat([pixels for _, pixels, _ in self.recent])
        labels = torch.cat([labels for _, _, labels in self.recent])
        return pixels[start : start + size], labels[start : start + size]


class DecodedImages:
    """Images for evaluation: in the order of their files, with nothing random."""

    def __init__(
        self, files: ImageFiles, transform: Transform, normalisation: Normalisation
    ) -> None:
        self.decoder, self.normalisation = MicroBatchDecoder(files, transform, 0), normalisation

    def __len__(self) -> int:
        return len(self.decoder.files)

    def batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The `count` images from `first` on, normalised, and their labels, in batches."""
        indices = np.arange(first, first + count)
        cuts = range(LARGE_EVALUATION_BATCH, count, LARGE_EVALUATION_BATCH)
        plan = [(0, part) for part in np.split(indices, cuts) if len(part)]
        queue = DecodingQueue(self.decoder, plan, self.normalisation.device)
        try:
            for _ in plan:
                pixels, labels = queue.next()
                yield self.normalisation(pixels), labels
        finally:
            queue.close()


# --- processes that decode ----------------------------------------------------------------------


class DecodingQueue:
    """The micro-batches of a plan in order, decoded ahead by other processes.

    `close` stops them. Left to the garbage collector, which may take their queue away first, each
    would keep it waiting for five seconds.
    """

    def __init__(
        self, decoder: MicroBatchDecoder, plan: list[MicroBatch], device: torch.device
    ) -> None:
        self.device = device
        self.source: Iterator[Any] | None = iter(decoding_loader(decoder, plan, device))

    def close(self) -> None:
        self.source = None

    def next(self) -> tuple[Tensor, Tensor]:
        """The next micro-batch, decoded, and on its way to the device."""
        received = self.receive()
        if isinstance(received, UserError):
            self.close()
            raise received
        pixels, labels = (part.to(self.device, non_blocking=True) for part in received)
        return pixels, labels

    def receive(self) -> Any:
        assert self.source
        try:
            return next(self.source)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            why = str(error).partition("\n")[0]
        return UserError(  # made outside of the handler: its traceback would keep the source alive
            f"a process that decodes images died ({why}): with little memory, or a small "
            "/dev/shm, set SGDF_WORKERS to a lower number"
        )


def decoding_loader(
    decoder: MicroBatchDecoder, plan: list[MicroBatch], device: torch.device
) -> DataLoader[Any]:
    workers = min(workers_for(sum(len(images) for _, images in plan)), len(plan))
    return DataLoader(
        decoder,
        batch_size=None,  # an item is a batch already
        sampler=plan,  # type: ignore[arg-type]  # a list will do
        num_workers=workers,
        worker_init_fn=start_worker if workers else None,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # not the one that dropout draws from
    )


def workers_for(images: int) -> int:
    """Number of processes: $SGDF_WORKERS, or this process's share of the machine's cores."""
    setting = os.environ.get("SGDF_WORKERS")
    if setting is not None:
        if not setting.isdigit():
            raise UserError(f"SGDF_WORKERS is an integer of at least 0, not {setting!r}")
        return int(setting)
    if images < FEW_IMAGES:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min((cores or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), MOST_WORKERS))


def start_worker(worker: int) -> None:
    """Leave Ctrl-C to the training process, die on SIGTERM, and hide Pillow's warnings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.filterwarnings("ignore", module="PIL")

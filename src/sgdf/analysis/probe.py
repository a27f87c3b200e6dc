"""What the instruments share: looking at a model on given images without changing it."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sgdf.support.numerics import full_precision

Loss = Callable[[Any, Tensor], Tensor]
Batches = list[tuple[Tensor, Tensor]]

MODE = "eval mode: batch norm by its running statistics, no dropout"
MODE_BY_BATCH = "eval mode, but batch norm by each batch's own statistics; no dropout"


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a training moves, by name; all on one device."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("the model has no parameters that require gradients")
    devices = {str(p.device) for p in found.values()}
    if len(devices) > 1:
        raise ValueError(f"the model lies on several devices, {', '.join(sorted(devices))}")
    return found


def read(data: Iterable[Any], device: torch.device) -> Batches:
    """All batches, read once and kept on the device: every look sees the same images.

    So an iterator that gives its batches only once will do, and so will a loader that shuffles or
    augments: what it gave the first time counts.
    """
    batches = []
    for batch in data:
        pair = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (None, None)
        x, y = pair
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.ndim:
            raise ValueError(
                "data must give batches (inputs, targets) of tensors; a single one goes into a "
                "list: [(inputs, targets)]"
            )
        if len(x):
            batches.append((x.to(device), y.to(device)))
    if not batches:
        raise ValueError("data gives no batches: an iterator that was used up before gives none")
    return batches


def images(batches: Batches) -> int:
    return sum(len(x) for x, _ in batches)


@torch.no_grad()
def mean_loss(
    model: nn.Module, parameters: Mapping[str, Tensor], loss: Loss, batches: Batches
) -> Tensor:
    """Over all images, whatever the sizes of the batches, with these parameters in the model."""
    count = images(batches)
    total = torch.zeros((), dtype=torch.float64, device=batches[0][0].device)
    for x, y in batches:
        total += loss(functional_call(model, dict(parameters), (x,)), y).double() * len(x) / count
    return total


@torch.no_grad()
def checked_loss(model: nn.Module, loss: Loss, batches: Batches) -> float:
    """The model's own loss, after a look at whether `loss` is one that averages."""
    x, y = batches[0]
    outputs = functional_call(model, {}, (x,))
    once = loss(outputs, y)
    if not isinstance(once, Tensor) or once.numel() != 1:
        raise ValueError("the loss must be one number a batch, the average over its images")
    if isinstance(outputs, Tensor) and outputs.shape[:1] == y.shape[:1] == x.shape[:1]:
        twice = loss(torch.cat([outputs, outputs]), torch.cat([y, y]))
        if twice.isfinite() and not torch.isclose(once, twice, rtol=1e-2, atol=1e-6):
            raise ValueError(
                "the loss must average over the images of a batch (reduction='mean'): this one "
                "changes when every image is there twice"
            )
    value = mean_loss(model, {}, loss, batches).item()
    if not math.isfinite(value):
        raise ValueError(f"the loss of the model on these images is {value}: there is no surface")
    return value


@contextlib.contextmanager
def undisturbed(model: nn.Module, seed: int) -> Iterator[None]:
    """Eval mode and full float32 inside; every module's mode, buffers and random state after."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    device = next(model.parameters()).device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        full_precision(device),
    ):
        # For a loader that shuffles or augments. torch.manual_seed would reach all other GPUs too.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        try:
            model.eval()
            yield
        finally:
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """By name."""
    kind = nn.modules.batchnorm._BatchNorm
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


class Counter:
    """Counts work done, and shows it on a bar where there is one."""

    def __init__(self, progress: Any = None) -> None:
        self.done = 0
        self.progress = progress
        self.bar = progress.add_task("") if progress else None

    def begin(self, stage: str, total: int | None = None) -> None:
        """A stage of so many units, or of a number that nobody knows ahead."""
        if self.progress:
            self.progress.reset(self.bar, description=stage, total=total)

    def tick(self, units: int = 1) -> None:
        self.done += units
        if self.progress:
            self.progress.advance(self.bar, units)


@contextlib.contextmanager
def counting(unit: str, shown: bool) -> Iterator[Counter]:
    if not shown:
        yield Counter()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, transient=True) as progress:
        yield Counter(progress)

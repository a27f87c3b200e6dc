"""What all instruments share: a model evaluated without changing it, and a count of the work."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from sgdf_lab.support.numerics import full_precision

Array = NDArray[np.float64]
Loss = Callable[[Any, Tensor], Tensor]
Batches = list[tuple[Tensor, Tensor]]

MODE = "eval mode: batch norm by its running statistics, no dropout"
MODE_BY_BATCH = "eval mode, but batch norm by each batch's own statistics; no dropout"


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, by name; all on one device."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the model has no parameters that require gradients")
    devices = {str(p.device) for p in parameters.values()}
    if len(devices) > 1:
        raise ValueError(f"the model is on several devices: {', '.join(sorted(devices))}")
    return parameters


def read_batches(data: Iterable[Any], device: torch.device) -> Batches:
    """Read all batches once and keep them on the device, so that every evaluation sees the same.

    This allows iterators that can be used only once, and loaders that shuffle or augment.
    """
    batches = []
    for batch in data:
        pair = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (None, None)
        x, y = pair
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.ndim:
            raise ValueError(
                "data must yield batches (inputs, targets) of tensors; put a single batch into a "
                "list: [(inputs, targets)]"
            )
        if len(x):
            batches.append((x.to(device), y.to(device)))
    if not batches:
        raise ValueError("data yields no batches: is it an iterator that was used before?")
    return batches


def count_images(batches: Batches) -> int:
    return sum(len(x) for x, _ in batches)


@torch.no_grad()
def mean_loss(
    model: nn.Module, parameters: Mapping[str, Tensor], loss: Loss, batches: Batches
) -> Tensor:
    """The mean over all images, for batches of any sizes, with `parameters` put into the model."""
    count = count_images(batches)
    total = torch.zeros((), dtype=torch.float64, device=batches[0][0].device)
    for x, y in batches:
        total += loss(functional_call(model, dict(parameters), (x,)), y).double() * len(x) / count
    return total


@torch.no_grad()
def checked_loss(model: nn.Module, loss: Loss, batches: Batches) -> float:
    """The model's own loss, after checking that `loss` averages over a batch."""
    x, y = batches[0]
    outputs = functional_call(model, {}, (x,))
    once = loss(outputs, y)
    if not isinstance(once, Tensor) or once.numel() != 1:
        raise ValueError("the loss must be one number per batch, the average over its images")
    if isinstance(outputs, Tensor) and outputs.shape[:1] == y.shape[:1] == x.shape[:1]:
        twice = loss(torch.cat([outputs, outputs]), torch.cat([y, y]))
        if twice.isfinite() and not torch.isclose(once, twice, rtol=1e-2, atol=1e-6):
            raise ValueError(
                "the loss must average over the images of a batch (reduction='mean'): this one "
                "changes when every image occurs twice"
            )
    value = mean_loss(model, {}, loss, batches).item()
    if not math.isfinite(value):
        raise ValueError(f"the loss of the model on these images is {value}, not a finite number")
    return value


@contextlib.contextmanager
def eval_mode_restored(model: nn.Module, seed: int) -> Iterator[None]:
    """Eval mode and full float32 inside; restores modes, buffers and random state at the end."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    device = next(model.parameters()).device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        full_precision(),
    ):
        # For loaders that shuffle or augment. torch.manual_seed would seed all other GPUs as well.
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
    """The batch norm layers, by name."""
    kind = nn.modules.batchnorm._BatchNorm
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


# --- progress ------------------------------------------------------------------------------------


class Counter:
    """Counts units of work, and shows each stage of it in a progress bar if it has one."""

    def __init__(self, progress: Any = None) -> None:
        self.done = 0
        self.progress = progress
        self.stage: Any = None

    def begin(self, stage: str, total: int | None = None) -> None:
        """Start a stage of `total` units; None if the number is not known in advance."""
        if self.progress:
            self.stage = self.progress.add_task(stage, total=total)

    def tick(self, units: int = 1) -> None:
        self.done += units
        if self.stage is not None:
            self.progress.advance(self.stage, units)


@contextlib.contextmanager
def progress_counter(unit: str, shown: bool) -> Iterator[Counter]:
    """A counter of `unit`, with a bar if `shown`."""
    if not shown:
        yield Counter()
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description:12}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn(unit),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, transient=True) as progress:
        yield Counter(progress)

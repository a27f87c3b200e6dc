"""What a trainer keeps on its device between steps: captured graphs, sums, learning rates."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

WARM_UP = 3  # eager calls before a capture: compile, choose convolutions, allocate state


class CudaGraphs:
    """Graphs by key: work runs eagerly `WARM_UP` times, is then captured, and replayed after."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.generator = torch.Generator(device)
        self.default = torch.cuda.default_generators[self.stream.device.index]
        self.pool = torch.cuda.graph_pool_handle()
        self.ran: dict[Any, int] = {}
        self.captured: dict[Any, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def follow(self) -> None:
        """Wait for what the current stream has prepared: weights, data, a checkpoint."""
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def run(self, key: Any, work: Callable[[], Any]) -> Any:
        """Do the work and return its result; once captured, always the same tensors."""
        if key in self.captured:
            graph, result = self.captured[key]
            graph.replay()
            return result
        self.ran[key] = self.ran.get(key, 0) + 1
        result = work()
        if self.ran[key] == WARM_UP:
            self.captured[key] = self._capture(work)
        return result

    def _capture(self, work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            result = work()
        return graph, result

    @contextlib.contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Swap this object's generator in for the default one, which dropout draws from.

        Graphs of one generator read their seed from the same memory, so trainers that take turns
        need one each.
        """
        before = self.default.graphsafe_get_state()
        self.default.graphsafe_set_state(self.generator.graphsafe_get_state())
        try:
            yield
        finally:
            self.default.graphsafe_set_state(before)


class Sums:
    """What the steps up to an evaluation add up on the device, without asking for it."""

    def __init__(self, device: torch.device) -> None:
        def zero(dtype: torch.dtype) -> Tensor:
            return torch.zeros((), device=device, dtype=dtype)

        self.loss = zero(torch.float64)
        self.correct = zero(torch.int64)
        self.steps = zero(torch.int64)
        self.norms = {name: zero(torch.float64) for name in ("gradient", "direction")}

    def zero(self) -> None:
        for value in (self.loss, self.correct, self.steps, *self.norms.values()):
            value.zero_()

    def add(self, loss: Tensor, correct: Tensor) -> None:
        self.loss += loss
        self.correct += correct

    def values(self) -> tuple[Tensor, ...]:
        return (self.loss, self.correct, *self.norms.values())


class GroupRates:
    """Keeps the ratio of every group's rate to that of the run.

    Most optimizers have one rate, and a ratio of 1: nothing is multiplied then. With the rate as a
    tensor, which captured steps read, groups of another rate have a tensor of their own.
    """

    def __init__(self, optimizers: Iterable[Optimizer], lr: Tensor | float) -> None:
        self.optimizers = list(optimizers)
        self.ratios = [
            [ratio(group.get("lr"), lr) for group in optimizer.param_groups]
            for optimizer in self.optimizers
        ]
        if isinstance(lr, Tensor):
            for group, factor in self._groups():
                group["lr"] = lr if factor == 1 else torch.mul(lr, factor)

    def _groups(self) -> Iterable[tuple[dict[str, Any], float]]:
        """Every group and its ratio; groups that were added since then have the run's rate."""
        for optimizer, ratios in zip(self.optimizers, self.ratios, strict=True):
            for i, group in enumerate(optimizer.param_groups):
                yield group, ratios[i] if i < len(ratios) else 1.0

    def set(self, lr: Tensor | float) -> None:
        """Scale all groups to a rate of the run; tensors are changed in place."""
        for group, factor in self._groups():
            if isinstance(lr, Tensor):
                if group["lr"] is not lr:
                    group["lr"].copy_(lr * factor)
            elif isinstance(group.get("lr"), Tensor):  # a compiled step has it as an input
                group["lr"].fill_(lr * factor)
            else:
                group["lr"] = lr if factor == 1 else lr * factor


def ratio(rate: Any, lr: Tensor | float) -> float:
    """1 if either is no number or the run's rate is 0."""
    if isinstance(rate, Tensor):
        rate = rate.item() if rate.numel() == 1 else None
    try:
        own, of_run = float(rate), float(lr)
    except (TypeError, ValueError):
        return 1.0
    return own / of_run if of_run != 0 and own != of_run else 1.0

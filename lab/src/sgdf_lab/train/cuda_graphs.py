"""Work captured in CUDA graphs and replayed, on a stream and a random generator of its own."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

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

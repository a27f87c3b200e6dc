"""What a probe costs: the time of training steps with and without one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from sgdf_lab.instruments.probe import Probe


@dataclass(frozen=True)
class ProbeOverhead:
    """Milliseconds of a step without a probe, between two of its samples, and with a sample."""

    plain_ms: float
    between_ms: float
    sampled_ms: float
    every: int

    @property
    def share(self) -> float:
        """What the probe adds to the time of a step on average, as a fraction."""
        return self.share_at(self.every)

    def share_at(self, every: int) -> float:
        mean = ((every - 1) * self.between_ms + self.sampled_ms) / every
        return mean / self.plain_ms - 1

    def every_for(self, share: float) -> int | None:
        """The smallest power of two that keeps to this share; None if none up to 2^15 does."""
        steps = (2**i for i in range(16))
        return next((every for every in steps if self.share_at(every) <= share), None)


def probe_overhead(
    optimizer: Optimizer,
    step: Callable[[], object],
    *,
    every: int = 10,
    coordinates: int = 65536,
    rounds: int = 30,
) -> ProbeOverhead:
    """Time steps without a probe, with a sample and between samples, in turns.

    A probe acts only inside ``optimizer.step()``, so its time is taken there, without the noise of
    forward and backward. The fastest step of each kind counts: other programs only slow it down.

    Args:
        optimizer: the one that `step` uses.
        step: a complete training step: gradients and one ``optimizer.step()``.
        every: as for `Probe`.
        coordinates: as for `Probe`.
        rounds: of three steps each, after one more to warm up.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def step():
        ...     model(torch.ones(8, 10)).square().mean().backward()
        ...     optimizer.step()
        >>> probe_overhead(optimizer, step, every=10, rounds=2).every
        10
    """
    if rounds < 1 or every < 1:
        raise ValueError(f"rounds and every must be at least 1, not {rounds} and {every}")
    timer = StepTimer(optimizer, step)

    def one_round() -> tuple[float, float, float, float]:
        step_ms, plain = timer.time_step()
        with Probe(optimizer, every=max(every, 2), coordinates=coordinates):
            _, sampled = timer.time_step()
            _, between = timer.time_step()
        return step_ms, plain, between, sampled

    first = optimizer.register_step_pre_hook(timer.mark)  # runs before the hooks of all probes
    try:
        one_round()
        kinds = zip(*(one_round() for _ in range(rounds)), strict=True)
        step_ms, plain, between, sampled = (min(times) for times in kinds)
    finally:
        first.remove()
    return ProbeOverhead(step_ms, step_ms + between - plain, step_ms + sampled - plain, every)


class StepTimer:
    """Times a training step, and the part of it inside the optimizer and its hooks."""

    def __init__(self, optimizer: Optimizer, step: Callable[[], object]) -> None:
        self.optimizer, self.step = optimizer, step
        self.on_gpu = any(p.is_cuda for group in optimizer.param_groups for p in group["params"])
        self.marks: list[float] = []

    def mark(self, *_: Any) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter() * 1000)

    def time_step(self) -> tuple[float, float]:
        """Milliseconds of a step, and of its part inside the optimizer.

        The caller has registered `mark` as the optimizer's first pre-hook.
        """
        self.marks.clear()
        last = self.optimizer.register_step_post_hook(self.mark)
        try:
            self.mark()
            self.step()
            self.mark()
        finally:
            last.remove()
        if len(self.marks) != 4:
            raise ValueError("step has to call optimizer.step() once")
        start, entered, left, end = self.marks
        return end - start, left - entered

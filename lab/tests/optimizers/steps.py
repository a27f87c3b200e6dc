"""Optimizers by name on weights and random gradients, in float64."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from sgdf_lab import optimizers

CPU = torch.device("cpu")


def build(name, params, model=None, **settings) -> Optimizer:
    return optimizers.build_optimizer(name, params, settings, device=CPU, model=model)


def problem(steps: int, *shapes: tuple[int, ...]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Weights, and gradients of every step; one coordinate's gradient is always 0."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    weights, grads = [draw(s) for s in shapes], [[draw(s) for s in shapes] for _ in range(steps)]
    for first, *_ in grads:
        first[0, 0] = 0
    return weights, grads


def step_with(optimizer: Optimizer, params: list[Tensor], grads: list[Tensor]) -> None:
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone()
    optimizer.step()

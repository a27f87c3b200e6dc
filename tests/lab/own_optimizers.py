"""Optimizers as users write them, for `--optimizer lab.own_optimizers.NAME`."""

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD


class HalfRate(SGD):
    """SGD with half the learning rate for the first parameter."""

    def __init__(self, params, lr: float | Tensor = 0.1, capturable: bool = False) -> None:
        first, *others = params
        super().__init__([{"params": [first], "lr": lr / 2}, {"params": others}], lr)


class WithNumbers(SGD):
    """Multiplies gradients by NumPy numbers that it keeps in its groups and its state."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr, momentum=0.9)
        for group in self.param_groups:
            group["decay"] = np.float32(0.7)
            group["table"] = np.linspace(0.5, 1, 7)

    def step(self, closure=None):
        for group in self.param_groups:
            group["decay"] = np.float32(group["decay"] * group["decay"].dtype.type(0.97))
            for p in group["params"]:
                state = self.state[p]
                state["factor"] = state.get("factor", np.float32(1)) * group["decay"]
                state["sums"] = state.get("sums", np.zeros(3)) + [1 / 3, 1, 1e-9]
                number = float(group["table"].mean() + state["factor"] + state["sums"].sum())
                p.grad.mul_(number / 20)
        return super().step(closure)


def constant(step: int) -> float:
    return 1.0


class WithFunction(SGD):
    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["schedule"] = constant


class WithLambda(SGD):
    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["schedules"] = [1.0, lambda step: step]


class History(list):
    """A container of a class of its own."""


class WithObject(SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["history"] = History([torch.zeros(2)])
        return super().step(closure)

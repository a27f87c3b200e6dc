"""Optimizers as users write them, for `--optimizer lab.own_optimizers.NAME`."""

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adam


def half_rate(params, lr: float | Tensor) -> list[dict[str, object]]:
    """Groups with half the learning rate for the first parameter, and none for the second."""
    first, second, *others = params
    rates = ([first], lr / 2), ([second], 0.0), (others, lr)
    return [{"params": group, "lr": rate} for group, rate in rates]


class HalfRate(SGD):
    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(half_rate(params, lr), lr)


class HalfRateAdam(Adam):
    def __init__(self, params, lr: float | Tensor = 0.1, capturable: bool = False) -> None:
        super().__init__(half_rate(params, lr), lr, capturable=capturable)


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
                state["sums"] = np.add(state.get("sums", np.zeros(3)), [1 / 3, 1, 1e-9])
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


class WithOwnState(SGD):
    """Saves something that torch's optimizers do not know."""

    def state_dict(self):
        return {"mine": 1.0}


class History(list):
    """A container of a class of its own."""


class WithObject(SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["history"] = History([torch.zeros(2)])
        return super().step(closure)

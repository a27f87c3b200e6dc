"""A WienerFilter without the step of the optimizer that it is attached to."""

from typing import Any

from torch import Tensor
from torch.optim import AdamW

from sgdf import WienerFilter


class FilterAlone:
    """The filter's own part of a step, to be timed like an optimizer.

    The filter overwrites gradients, and contestants share theirs, so this one filters copies. A
    gradient that never changes is its own estimate: the copies stay as they are, up to rounding.
    """

    def __init__(self, params: list[Tensor], lr: float, **settings: Any) -> None:
        own = [p.detach().requires_grad_() for p in params]
        for p, shared in zip(own, params, strict=True):
            assert shared.grad is not None
            p.grad = shared.grad.clone()
        self.params = own
        self.wiener = WienerFilter(AdamW(own, lr=lr, fused=True), **settings)

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        return self.wiener.state

    @property
    def implementation(self) -> str:
        path = self.wiener._path(self.params)
        return "fused" if path in ("cpu", "cuda") else path

    def step(self) -> None:
        self.wiener.filter_gradients()

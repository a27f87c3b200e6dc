"""Products of the Hessian with vectors, and the second derivatives they need."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sgdf_lab.instruments.evaluation import Batches, Loss, count_images
from sgdf_lab.instruments.progress import Counter

Multiply = Callable[[Tensor], Tensor]  # H v, or H V for a matrix V


def hessian_product(
    model: nn.Module,
    loss: Loss,
    parameters: list[nn.Parameter],
    batches: Batches,
    counter: Counter,
) -> Multiply:
    """A function that multiplies the Hessian of the mean loss with a vector or a matrix."""
    from curvlinops import HessianLinearOperator

    operator = HessianLinearOperator(
        *(model, MeanLoss(loss), parameters, batches),
        check_deterministic=False,  # it is: eval mode, and data that was read once
        num_data=count_images(batches),
    )

    def multiply(vectors: Tensor) -> Tensor:
        result: Tensor = operator @ vectors
        if not result.isfinite().all():
            raise ValueError("the second derivatives of the loss are not finite here")
        counter.tick(1 if vectors.ndim == 1 else vectors.shape[1])
        return result

    return multiply


class MeanLoss(nn.Module):
    """The loss as the module that curvlinops expects; it weights batches by their images."""

    reduction = "mean"

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)


def check_symmetry(multiply: Multiply, size: int, like: Tensor, seed: int) -> None:
    """Refuse products that are not symmetric: a correct Hessian is."""
    drawn = np.random.default_rng([seed, 1]).standard_normal((2, size))
    u, v = torch.from_numpy(drawn).to(like)
    hu, hv = multiply(u).double(), multiply(v).double()
    difference = (u.double() @ hv - v.double() @ hu).abs()
    if difference > 1e-3 * torch.maximum(hu.norm(), hv.norm()):
        raise ValueError(
            "torch's second derivatives of this model are wrong: they are not symmetric; the "
            "forward-mode derivative of an operation may be at fault"
        )


# --- second derivatives that torch gets right -----------------------------------------------------


@contextlib.contextmanager
def twice_differentiable() -> Iterator[None]:
    """Compute attention and layer norm from elementary operations.

    Fused attention has no second derivatives. Those of torch's layer norm, backward and then
    forward, are not even symmetric in torch 2.11 to 2.15.
    """
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), ElementaryLayerNorm():
        # torch warns when it first prepares forward-mode derivatives
        warnings.filterwarnings("ignore", message="`torch.jit.script`")
        warnings.filterwarnings("ignore", message="There is a performance drop")  # of vmap
        yield


class ElementaryLayerNorm(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.layer_norm, nn.functional.layer_norm):
            func = layer_norm
        return func(*args, **(kwargs or {}))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    over = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(over, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(over, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias
